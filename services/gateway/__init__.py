"""The REST API: checks requests, makes tokens of text and text of tokens, streams answers."""
