"""Which transports an endpoint of UCX has: ucp_ep_query, which ucxx does not hand on."""

import ctypes
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_size_t, c_uint, c_uint64, c_void_p, sizeof

FIELD_TRANSPORTS = 1 << 3
NAME_BYTES, ADDRESS_WORDS = 32, 16
MOST_TRANSPORTS = 32

_ucp = ctypes.CDLL("libucp.so.0")  # loaded before by ucxx: the same one


class _Transport(Structure):
    """ucp_transport_entry_t."""

    _fields_ = (("name", c_char_p), ("device", c_char_p))


class _Attributes(Structure):
    """ucp_ep_attr_t."""

    _fields_ = (
        ("field_mask", c_uint64),
        ("name", c_char * NAME_BYTES),
        ("local_address", c_uint64 * ADDRESS_WORDS),
        ("remote_address", c_uint64 * ADDRESS_WORDS),
        ("transports", POINTER(_Transport)),
        ("count", c_uint),
        ("entry_bytes", c_size_t),
        ("user_data", c_void_p),
    )


def endpoint_transports(handle: int) -> frozenset[str]:
    """Those of the endpoint, for small and large messages; none where UCX does not tell."""
    entries = (_Transport * MOST_TRANSPORTS)()
    asked = _Attributes(
        field_mask=FIELD_TRANSPORTS, transports=entries, count=MOST_TRANSPORTS, entry_bytes=sizeof(_Transport)
    )
    status = _ucp.ucp_ep_query(c_void_p(handle), byref(asked))
    return frozenset() if status else frozenset(entry.name.decode() for entry in entries[: asked.count])
