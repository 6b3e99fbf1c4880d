"""Computes the logits of models with another implementation, for torchvision_test.cc.

    torchvision_reference.py CLASSES DIRECTORY

Each line of standard input is the name of a model. For each model, the script reads the safetensors files "weights" and "images" in
DIRECTORY, writes the file "logits", and prints "done". The file contains "logits" in evaluation, and for Inception V3 also "auxiliary"
in training with running statistics. The names of the weights must be exactly those of the network's parameters.
If PyTorch or torchvision is not installed, the script exits with status 77.
"""
import json
import struct
import sys
import warnings

try:
    import numpy
    import torch
    import torchvision
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)


def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32", entry
        begin, end = entry["data_offsets"]
        values = numpy.frombuffer(data[begin:end], "<f4").reshape(entry["shape"])
        tensors[name] = torch.from_numpy(values.copy())
    return tensors


def write(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        values = tensor.detach().numpy().astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def cifar_resnet(depth, weights, images):
    """The network of He et al. 2015, section 4.2, with shortcuts of option A, in evaluation."""
    functional = torch.nn.functional

    def conv(name, x, stride=1):
        return functional.conv2d(x, weights.pop(name + ".weight"), stride=stride, padding=1)

    def norm(name, x):
        mean, variance = weights.pop(name + ".running_mean"), weights.pop(name + ".running_var")
        return functional.batch_norm(x, mean, variance, weights.pop(name + ".weight"), weights.pop(name + ".bias"))

    x = functional.relu(norm("norm", conv("conv", images)))
    for stage in (1, 2, 3):
        for block in range((depth - 2) // 6):
            name = f"stage{stage}_{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            y = functional.relu(norm(name + ".norm1", conv(name + ".conv1", x, stride)))
            y = norm(name + ".norm2", conv(name + ".conv2", y))
            if stride == 2:
                added = x.shape[1] // 2
                x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, added, added))
            x = functional.relu(x + y)
    logits = functional.linear(x.mean((2, 3)), weights.pop("linear.weight"), weights.pop("linear.bias"))
    assert not weights, f"weights that nothing reads: {sorted(weights)}"
    return logits


def gpt(heads, weights, tokens):
    """GPT-2, made of PyTorch's layers for a transformer encoder. With a causal mask, they are equal to the layers of a decoder without
    cross attention."""
    width, context = weights["wte.weight"].shape[1], tokens.shape[1]
    layers = sum(name.endswith("ln_1.weight") for name in weights)
    later = torch.full((context, context), float("-inf")).triu(1)
    embedding = weights.pop("wte.weight")
    x = torch.nn.functional.embedding(tokens, embedding) + weights.pop("wpe.weight")[:context]
    for layer in range(layers):
        block = torch.nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0, activation=lambda y: torch.nn.functional.gelu(y, approximate="tanh"),
            batch_first=True, norm_first=True
        )
        names = {"self_attn.in_proj_": "attn.c_attn.", "self_attn.out_proj.": "attn.c_proj.", "linear1.": "mlp.c_fc.",
                 "linear2.": "mlp.c_proj.", "norm1.": "ln_1.", "norm2.": "ln_2."}
        block.load_state_dict(
            {theirs + kind: weights.pop(f"h.{layer}.{ours}{kind}") for theirs, ours in names.items() for kind in ("weight", "bias")}
        )
        x = block.train()(x, src_mask=later)  # in evaluation mode, PyTorch may use different code
    x = torch.nn.functional.layer_norm(x, (width,), weights.pop("ln_f.weight"), weights.pop("ln_f.bias"))
    assert not weights, f"weights that nothing reads: {sorted(weights)}"
    return (x @ embedding.T).flatten(0, 1)


def compute(name, classes, folder):
    weights, images = read(folder + "/weights"), read(folder + "/images")["images"]
    with torch.no_grad():
        if name in ("resnet8", "resnet20", "resnet32", "resnet44", "resnet56"):
            write(folder + "/logits", {"logits": cifar_resnet(int(name[6:]), weights, images)})
            return
        if name.startswith("gpt"):
            write(folder + "/logits", {"logits": gpt(12 if name == "gpt-small" else 3, weights, images.long())})
            return
        options = {"init_weights": False} if name in ("inception_v3", "vgg16") else {}
        model = getattr(torchvision.models, name)(num_classes=classes, **options)
        model.load_state_dict(weights)
        logits = {"logits": model.eval()(images)}
        if name == "inception_v3":
            model.train()  # the normalizations stay in evaluation mode, because the batch is small
            for module in model.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.eval()
            logits["auxiliary"] = model(images)[1]
        write(folder + "/logits", logits)


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for line in sys.stdin:
        compute(line.strip(), int(sys.argv[1]), sys.argv[2])
        print("done", flush=True)


main()
