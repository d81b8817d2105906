"""The uint16 codes of the token files: a token id in the low 12 bits, and marks above."""

ID_BITS = 0x0FFF
REPLY = 0x8000  # set on tokens that the assistant writes (and on all of a book)
PADDING = 0x4000
TOOLS = 0x2000  # set on what the assistant writes in a conversation with tools
CALL = 0x1000  # set on the calls in that
