"""From evidence to decisions: rules, match hooks, and every problem at once."""
