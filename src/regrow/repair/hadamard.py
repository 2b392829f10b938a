"""Hadamard matrices of every order that Sylvester's, Paley's and Kronecker's constructions reach.

Orders 1, 2 and multiples of 4 are possible at all. The constructions give all stream widths in common use (576 =
16 x 36, 960 = 16 x 60, 1536 = 128 x 12, 2880 = 16 x 180, ...); of the 256 multiples of 64 up to 16,384 they miss 18,
the smallest 3,776.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np

from regrow.errors import ConfigError

_UNITS = np.array([[1, 1], [1, -1]], dtype=np.int8)


def hadamard(width: int) -> np.ndarray:
    """Return a (width, width) matrix H of +1 and -1, int8, with H H' = width I. Raises ConfigError when no
    construction reaches the order."""
    if not reachable(width):
        below = next((order for order in range(width - 1, 0, -1) if reachable(order)), 1)
        above = next(order for order in range(width + 1, 2 * max(width, 1) + 4) if reachable(order))
        raise ConfigError(
            f"there is no Hadamard matrix of order {width} at hand, so linear-patch cannot rotate a stream that wide",
            hint=f"use --method linear-patch-diag, which needs none (nearest orders: {below} and {above})",
        )
    return _build(width)


@cache
def reachable(order: int) -> bool:
    """Return whether a construction gives a Hadamard matrix of this order."""
    if order in (1, 2):
        return True
    return order > 0 and order % 4 == 0 and (_direct(order) is not None or _factors(order) is not None)


def _direct(order: int) -> str | None:
    """Return which of Paley's constructions gives this order."""
    if (order - 1) % 4 == 3 and _prime_power(order - 1):
        return "one"
    if (order // 2 - 1) % 4 == 1 and _prime_power(order // 2 - 1):
        return "two"
    return None


def _factors(order: int) -> tuple[int, int] | None:
    """Return two reachable orders whose product this is; 2 is preferred, which leads to Sylvester's matrices."""
    for factor in (2, *range(4, math.isqrt(order) + 1, 4)):
        if order % factor == 0 and reachable(factor) and reachable(order // factor):
            return factor, order // factor
    return None


@lru_cache(maxsize=8)
def _build(order: int) -> np.ndarray:
    if order == 1:
        return np.ones((1, 1), dtype=np.int8)
    if order == 2:
        return _UNITS
    split = _factors(order)
    if split is not None:
        return np.kron(_build(split[0]), _build(split[1]))
    return _paley_one(order) if _direct(order) == "one" else _paley_two(order)


def _paley_one(order: int) -> np.ndarray:
    """Return the matrix of order q + 1, q a prime power that is 3 modulo 4."""
    residues = _jacobsthal(order - 1)
    skew = np.zeros((order, order), dtype=np.int8)
    skew[0, 1:] = 1
    skew[1:, 0] = -1
    skew[1:, 1:] = residues
    return skew + np.eye(order, dtype=np.int8)


def _paley_two(order: int) -> np.ndarray:
    """Return the matrix of order 2 (q + 1), q a prime power that is 1 modulo 4."""
    q = order // 2 - 1
    residues = _jacobsthal(q)
    conference = np.zeros((q + 1, q + 1), dtype=np.int8)
    conference[0, 1:] = 1
    conference[1:, 0] = 1
    conference[1:, 1:] = residues
    zero_entries = np.array([[1, -1], [-1, -1]], dtype=np.int8)
    return np.kron(conference, _UNITS) + np.kron(np.eye(q + 1, dtype=np.int8), zero_entries)


def _jacobsthal(q: int) -> np.ndarray:
    """Return the (q, q) matrix of quadratic characters of x - y over the field of q elements, q a prime power."""
    power = _prime_power(q)
    assert power is not None
    prime, degree = power
    digits = np.array([[number // prime**place % prime for place in range(degree)] for number in range(q)])
    squares = _squares(prime, degree, digits)
    place_values = prime ** np.arange(degree)
    differences = ((digits[:, None, :] - digits[None, :, :]) % prime) @ place_values
    character = np.where(squares, 1, -1).astype(np.int8)
    character[0] = 0
    return character[differences]


def _squares(prime: int, degree: int, digits: np.ndarray) -> np.ndarray:
    """Return which field elements are squares, elements numbered by their base-``prime`` digits."""
    modulus = _irreducible(prime, degree)
    found = np.zeros(len(digits), dtype=bool)
    place_values = prime ** np.arange(degree)
    for element in digits[1:]:
        product = np.convolve(element, element) % prime
        found[int(_reduced(product, modulus, prime) @ place_values)] = True
    return found


def _reduced(polynomial: np.ndarray, modulus: np.ndarray, prime: int) -> np.ndarray:
    """Return a polynomial (lowest power first) modulo a monic one."""
    degree = len(modulus) - 1
    rest = polynomial.copy()
    for top in range(len(rest) - 1, degree - 1, -1):
        rest[top - degree : top + 1] = (rest[top - degree : top + 1] - rest[top] * modulus) % prime
    return rest[:degree] if len(rest) >= degree else np.pad(rest, (0, degree - len(rest)))


def _irreducible(prime: int, degree: int) -> np.ndarray:
    """Return a monic irreducible polynomial of ``degree``, lowest power first."""
    if degree == 1:
        return np.array([0, 1])
    for number in range(prime**degree):
        candidate = np.array([number // prime**place % prime for place in range(degree)] + [1])
        if candidate[0] and not _has_factor(candidate, prime):
            return candidate
    raise AssertionError("every finite field has an irreducible polynomial of every degree")


def _has_factor(candidate: np.ndarray, prime: int) -> bool:
    for degree in range(1, (len(candidate) - 1) // 2 + 1):
        for number in range(prime**degree):
            factor = np.array([number // prime**place % prime for place in range(degree)] + [1])
            if not _reduced(candidate, factor, prime).any():
                return True
    return False


def _prime_power(q: int) -> tuple[int, int] | None:
    for prime in range(2, int(q**0.5) + 1):
        if q % prime == 0:
            degree = 0
            while q % prime == 0:
                q, degree = q // prime, degree + 1
            return (prime, degree) if q == 1 else None
    return (q, 1) if q > 1 else None
