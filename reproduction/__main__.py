"""``python -m reproduction``."""

if __name__ == "__main__":  # job processes import this file, and need nothing of it
    from reproduction.cli import main

    main()
