"""Makes an adapter get images as bytes on a CPU and convert them there, as on a GPU: run `bytes_on_cpu.py ADAPTER`, or call change()
after importing the adapter."""
import os
import runpy
import sys


def change():
    from scalelab import image_server, recipe, training

    recipe.load_data = image_server.ServedData
    training.Engine.takes_bytes = True


if __name__ == "__main__":
    adapter = os.path.abspath(sys.argv[1])
    sys.path.insert(0, os.path.dirname(adapter))
    change()
    sys.argv = [adapter]
    runpy.run_path(adapter, run_name="__main__")
