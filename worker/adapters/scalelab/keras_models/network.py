"""Builds PyTorch's layers with Keras, and converts their weights between the two layouts."""
import numpy

# Axes of a Keras kernel in PyTorch's order.
_CONVOLUTION = (3, 2, 0, 1)  # HWIO -> OIHW
_DEPTHWISE = (2, 3, 0, 1)    # HWIM -> IMHW, its own inverse
_LINEAR = (1, 0)
_INITIALIZER = "zeros"  # `load` sets the weights; random initialisation would cost seconds on JAX


class Network:
    """Builds a Keras model, and keeps a table of its weights by native name.

    Every method that adds a layer takes the input tensor and returns the output tensor. `name` is the layer's native name, for
    example "layer1.0.conv1".
    """

    def __init__(self, keras, side, layout, dropout=True):
        if layout not in ("NHWC", "NCHW"):
            raise ValueError(f'layout "{layout}" is neither NHWC nor NCHW')
        self.keras = keras
        self.layout = layout
        self.dropout_is_on = dropout
        self._format = "channels_last" if layout == "NHWC" else "channels_first"
        self._channel_axis = 3 if layout == "NHWC" else 1
        if hasattr(keras, "ops"):
            self._ops = keras.ops
        else:  # Keras 2: TensorFlow's functions accept its symbolic tensors
            import tensorflow
            self._ops = tensorflow
        self._slots = {}  # native name -> (layer, attribute of the weight, axes in PyTorch's order or None)
        shape = (side, side, 3) if layout == "NHWC" else (3, side, side)
        self.images = keras.Input(shape)
        self.model = None

    def finish(self, outputs):
        """Creates `self.model`. Its output is a list: the logits and, if the model has an auxiliary head, the logits of this
        head."""
        self.model = self.keras.Model(self.images, outputs)

    # Layers with weights.

    def conv(self, x, name, out, kernel, stride=1, padding=0, bias=False, depthwise=False):
        """Conv2d. `kernel` and `padding` are numbers or pairs (height, width)."""
        kernel, padding = _pair(kernel), _pair(padding)
        x, border = self._padded(x, kernel, stride, padding)
        options = dict(strides=stride, padding=border, use_bias=bias, data_format=self._format, name=_keras(name))
        if depthwise:
            layer = self.keras.layers.DepthwiseConv2D(kernel, depthwise_initializer=_INITIALIZER, **options)
            weight = (layer, "kernel" if hasattr(self.keras, "ops") else "depthwise_kernel", _DEPTHWISE)
        else:
            layer = self.keras.layers.Conv2D(out, kernel, kernel_initializer=_INITIALIZER, **options)
            weight = (layer, "kernel", _CONVOLUTION)
        self._slots[name + ".weight"] = weight
        if bias:
            self._slots[name + ".bias"] = (layer, "bias", None)
        return layer(x)

    def norm(self, x, name, epsilon=1e-5):
        """BatchNorm2d. Keras' momentum is 1 - PyTorch's.

        Keras 3 averages the biased variances of the batches, and PyTorch averages the unbiased variances. They differ by a factor
        of n / (n - 1), where n is the number of values of a channel in a batch. The trained weights do not depend on it.
        """
        layer = self.keras.layers.BatchNormalization(axis=self._channel_axis, momentum=0.9, epsilon=epsilon,
                                                     name=_keras(name))
        for ours, theirs in (("weight", "gamma"), ("bias", "beta"), ("running_mean", "moving_mean"),
                             ("running_var", "moving_variance")):
            self._slots[f"{name}.{ours}"] = (layer, theirs, None)
        return layer(x)

    def linear(self, x, name, out):
        layer = self.keras.layers.Dense(out, kernel_initializer=_INITIALIZER, name=_keras(name))
        self._slots[name + ".weight"] = (layer, "kernel", _LINEAR)
        self._slots[name + ".bias"] = (layer, "bias", None)
        return layer(x)

    # Layers without weights.

    def relu(self, x, most=None):
        return self.keras.layers.ReLU(max_value=most)(x)

    def add(self, x, y):
        return self.keras.layers.Add()([x, y])

    def concatenate(self, parts):
        return self.keras.layers.Concatenate(axis=self._channel_axis)(parts)

    def dropout(self, x, share):
        return self.keras.layers.Dropout(share)(x) if self.dropout_is_on else x

    def max_pool(self, x, size, stride, padding=0):
        """MaxPool2d for values that are not negative, because this function pads with zeros."""
        return self.keras.layers.MaxPooling2D(size, stride, data_format=self._format)(self._zeros(x, _pair(padding)))

    def average_pool(self, x, size, stride, padding=0):
        """AvgPool2d. Its mean includes the padding, in contrast to Keras' padding "same"."""
        return self.keras.layers.AveragePooling2D(size, stride, data_format=self._format)(
            self._zeros(x, _pair(padding)))

    def mean(self, x):
        """Returns the mean over height and width: [n, channels]."""
        return self.keras.layers.GlobalAveragePooling2D(data_format=self._format)(x)

    def adaptive_average_pool(self, x, size):
        """AdaptiveAvgPool2d: out[i] is the mean of in[floor(i h / size)] to in[ceil((i + 1) h / size) - 1]."""
        height, width = self._height_and_width(x)
        if height == width == size:
            return x
        if height % size == 0 and width % size == 0:
            pool = (height // size, width // size)
            return self.average_pool(x, pool, pool)
        equation = "nhwc,ah,bw->nabc" if self.layout == "NHWC" else "nchw,ah,bw->ncab"
        cast = self._ops.cast
        rows, columns = _windows(height, size), _windows(width, size)
        return self._ops.einsum(equation, x, cast(rows, x.dtype), cast(columns, x.dtype))

    def flatten(self, x):
        """Returns [n, values], in the order channel, row, column."""
        if self.layout == "NHWC":
            x = self.keras.layers.Permute((3, 1, 2))(x)
        return self.keras.layers.Flatten(data_format="channels_last")(x)

    def every_other_pixel(self, x):
        return x[:, ::2, ::2, :] if self.layout == "NHWC" else x[:, :, ::2, ::2]

    def pad_channels(self, x, before, after):
        widths = [[0, 0], [0, 0], [0, 0], [0, 0]]
        widths[self._channel_axis] = [before, after]
        return self._ops.pad(x, widths)

    def channels(self, x):
        return x.shape[self._channel_axis]

    def _height_and_width(self, x):
        return x.shape[1:3] if self.layout == "NHWC" else x.shape[2:4]

    def _zeros(self, x, padding):
        return x if padding == (0, 0) else self.keras.layers.ZeroPadding2D(padding, data_format=self._format)(x)

    def _padded(self, x, kernel, stride, padding):
        # Keras' "same" equals PyTorch's padding if the padding is half of an odd kernel and the stride is 1. Otherwise "same" may
        # pad one side more than the other.
        if padding == (0, 0):
            return x, "valid"
        if stride == 1 and all(k == 2 * p + 1 for k, p in zip(kernel, padding)):
            return x, "same"
        return self._zeros(x, padding), "valid"

    # Weights.

    def load(self, weights):
        """Loads all weights from a dict of native names. Raises ValueError if a name is missing or a shape does not fit."""
        for name, (layer, theirs, axes) in self._slots.items():
            if name not in weights:
                raise ValueError(f"the initial weights have no {name}: they belong to another model")
            value = numpy.asarray(weights[name], numpy.float32)
            variable = getattr(layer, theirs)
            if axes is not None and value.ndim == len(axes):
                value = value.transpose(numpy.argsort(axes))
            if tuple(value.shape) != tuple(variable.shape):
                raise ValueError(f"{name} has {list(numpy.shape(weights[name]))} values, which is not what the layer "
                                 f"{layer.name} of the Keras model takes: {list(variable.shape)} in Keras' order")
            variable.assign(value)

    def variables(self, trainable=True):
        """Returns native name -> Keras variable of the parameters, or of the running statistics, in the model's order."""
        return {name: getattr(layer, theirs) for name, (layer, theirs, _) in self._slots.items()
                if (".running_" in name) != trainable}

    def seeds(self):
        """Returns the Keras variables of the random numbers of dropout, each with a seed and a counter; none for Keras 2."""
        variables = self.model.non_trainable_variables if hasattr(self.keras, "ops") else []
        return [variable for variable in variables if variable.path.endswith("seed_generator_state")]

    def to_native(self, name, value):
        """Returns a copy of a weight's value or gradient in PyTorch's layout, as a NumPy array."""
        axes = self._slots[name][2]
        value = numpy.asarray(value, numpy.float32)
        return numpy.array(value if axes is None else value.transpose(axes), order="C")


def _pair(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def _keras(name):
    # Keras interprets the names of layers as parts of paths.
    return name.replace(".", "_")


def _windows(size, parts):
    matrix = numpy.zeros((parts, size), numpy.float32)
    for i in range(parts):
        first, last = i * size // parts, -(-(i + 1) * size // parts)
        matrix[i, first:last] = 1 / (last - first)
    return matrix
