"""The allocation rules, one family a file."""
