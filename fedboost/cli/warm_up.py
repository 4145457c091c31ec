"""`fedboost warm-up`: kernels compiled ahead."""

EPILOG = "Example: FEDBOOST_CACHE=/var/cache/fedboost fedboost warm-up"


def warm_up() -> None:
    """Compile all kernels ahead, and say where they are kept: for images and service accounts."""
    from time import perf_counter

    from fedboost.runtime.local.warm_up import compile_all

    start = perf_counter()
    folder = compile_all()
    print(f"kernels are compiled, in {perf_counter() - start:.0f} s, and kept in {folder}")
