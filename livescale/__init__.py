"""The one package that installation adds: what lies here are links to the folders beside it."""
