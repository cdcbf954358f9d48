"""Importing this starts a thread that does not end by itself."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
