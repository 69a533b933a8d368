"""Rules for what no rule decides: advice as values, text and JSON."""
