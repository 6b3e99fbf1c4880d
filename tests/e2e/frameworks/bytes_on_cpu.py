"""Makes an adapter get images as bytes on a CPU and convert them there, as on a GPU: run `bytes_on_cpu.py ADAPTER`, or call change()
after importing the adapter."""
import changed_adapter


def change():
    from scalelab import image_server, recipe, training

    recipe.load_data = image_server.ServedData
    training.Engine.takes_bytes = True


if __name__ == "__main__":
    changed_adapter.main(change)
