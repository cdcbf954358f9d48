"""Typed messages: the only language the processes speak. One module a conversation.

Every message is a frozen, tagged `msgspec.Struct`. Messages tolerate unknown fields, so new fields need
defaults; a field of the wrong type is refused by name. Facts are nouns, commands are imperative.
"""
