"""Which partition of `__consumer_offsets` holds a group."""

from functools import lru_cache


@lru_cache(maxsize=4_096)
def partition_of(group: str, count: int) -> int:
    """Return the partition, of so many, that holds the group's commits, as all brokers compute it.

    That is the absolute value of Java's String.hashCode of the group id, modulo count. Kafka's Utils.abs returns 0 for
    the one number that has no positive counterpart; it does not clear the sign bit as `Utils.toPositive` does.
    """
    units = group.encode("utf-16-be", "surrogatepass")
    hash_code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        hash_code = (31 * hash_code + (high << 8) + low) & 0xFFFFFFFF
    signed = hash_code - (1 << 32) if hash_code >= 1 << 31 else hash_code
    return (0 if signed == -(1 << 31) else abs(signed)) % count
