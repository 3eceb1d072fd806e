"""`python -m rolltape`: the command `rolltape`."""

from rolltape.cli import main

if __name__ == "__main__":
    main()
