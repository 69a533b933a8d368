"""One thin module per engine, imported when the engine is used."""
