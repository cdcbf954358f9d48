"""Make the reference pages, and the README's picture, from the code."""
