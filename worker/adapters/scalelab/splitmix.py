"""SplitMix64 (Steele, Lea, Flood 2014) as in worker/trainer/data/random.h, vectorised over arrays of generators."""
import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def _mix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _word(value):
    """Converts integers to uint64. Negative integers wrap around as in C++."""
    if isinstance(value, np.ndarray):
        return value.astype(np.uint64)
    return np.array([int(value) & _MASK], np.uint64)


def states(seed, a, b):
    """Returns the state of generator (seed, a, b), or the states of many generators if `a` or `b` is an array."""
    return _mix(_mix(_mix(_word(seed)) ^ _word(a)) ^ _word(b))


def seed32(seed, rank=0):
    """Returns the seed of a rank's random numbers, such as those of dropout, from the seed of the run. It is below 2^32: Keras accepts
    no other seeds, and PyTorch uses only the lower 32 bits of a seed on a CPU."""
    return int(states(seed, rank, 0)[0] >> np.uint64(32))


def draws(state, first, count):
    """Returns `count` numbers of each generator, starting with number `first` (counted from 1): [generators, count]."""
    steps = np.arange(first, first + count, dtype=np.uint64) * _GAMMA
    return _mix(state[:, None] + steps[None, :])


def below(numbers, bound):
    """Maps numbers to 0 .. bound - 1, for bound < 2^32, by the upper half of the 128-bit product (Lemire's multiplication)."""
    bound = np.asarray(bound, np.uint64)
    low = (numbers & np.uint64(0xFFFFFFFF)) * bound
    high = (numbers >> np.uint64(32)) * bound
    return (high + (low >> np.uint64(32))) >> np.uint64(32)
