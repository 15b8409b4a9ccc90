"""The command line: one module per noun, a class per verb; `shell` has the table of all."""
