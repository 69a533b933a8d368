"""From names to places: module to file, module to distribution, object to name.

Nothing here imports or executes the module that is looked for.
"""
