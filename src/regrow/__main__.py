"""``python -m regrow``: the same as the console script, for launchers such as torchrun."""

from regrow.cli.start import start

if __name__ == "__main__":
    start()
