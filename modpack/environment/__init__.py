"""The loading environment: its importers, its modules, and its comparison with a recorded one."""
