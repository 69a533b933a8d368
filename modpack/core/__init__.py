"""The ground floor: frozen values and pure functions that every other room shares.

Nothing here imports another room of modpack, torch, or anything outside the standard library.
"""
