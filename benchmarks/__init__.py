"""Speed and accuracy runs; each prints a table that anyone can repeat."""
