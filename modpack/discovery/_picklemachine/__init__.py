"""The stack machine of pickles (PEP 307, PEP 3154, PEP 574), followed without running anything.

What it is fed: ``following`` runs through the bytes of a pickle, ``opcodes`` and ``actions`` say
what each opcode does to the ``machine``, which is a ``stack`` of ``values`` with a few bounds.

What it comes to: ``calls`` has one rule for each function that does more than to make an object,
some of them in ``attributes``, ``making`` and ``codemaking``; ``changes`` are those of objects that
are there already, ``reach`` is about functions that others may call later. ``found`` gathers it.
"""
