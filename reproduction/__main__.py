"""``python -m reproduction``."""

if __name__ == "__main__":  # job processes import this file, and need nothing of it
    import sys

    if sys.argv[1:2] == ["immunity"]:
        from reproduction.immunity import main as immunity

        immunity(sys.argv[2:])
    else:
        from reproduction.cli import main

        main()
