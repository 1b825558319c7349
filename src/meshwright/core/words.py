"""Counts in messages."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """``count`` and the noun; ``many`` is the plural, by default ``one`` with an "s".

    Example:
      >>> counted(1, "axis", "axes"), counted(2, "axis", "axes"), counted(0, "device")
      ('1 axis', '2 axes', '0 devices')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def there_are(count: int, one: str = "") -> str:
    """A clause with a count; without ``one``, for things named before.

    Example:
      >>> there_are(1, "device"), there_are(2)
      ('there is 1 device', 'there are 2')
    """
    return f"there {'is' if count == 1 else 'are'} {counted(count, one) if one else count}"
