"""Signatures: who vouches for a package.

What is signed is the package's digest, in a statement of the in-toto kind within a DSSE envelope
(https://github.com/secure-systems-lab/dsse), with Ed25519. Looking at envelopes and public keys
needs the standard library only; making and checking signatures needs the extra ``sign``.
"""
