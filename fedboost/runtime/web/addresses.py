"""Addresses of clients, grouped by who can have them.

Promises: all loopback addresses are one group, and all addresses of an IPv6 network of 64 bits: whoever has
one of these has the others, too.
Refuses: nothing.
"""

from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network

LOOPBACK = "loopback"
NETWORK_BITS = 64


@lru_cache(4096)
def group_of(address: str) -> str:
    """The name of the group of an address; what is no address is a group by itself."""
    try:
        known = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(known, IPv6Address):
        known = known.ipv4_mapped or known
    if known.is_loopback:
        return LOOPBACK
    if isinstance(known, IPv6Address):
        return str(ip_network((known, NETWORK_BITS), strict=False))
    return str(known)
