"""The competitor of `scalelab-bench train`: one rank of PyTorch DDP over Gloo, written as in PyTorch's tutorials.

Models: the CIFAR ResNets of He et al. 2015 (section 4.2, shortcuts without parameters) and ResNet-50 (table 1, as in torchvision).
Optimiser: SGD with momentum and weight decay. All batches are in memory before the clock starts, because the benchmark does not
compare loading. Prints the median seconds of a step.
"""
import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.stride, self.pad = stride, (outer - inner) // 2

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        if self.pad or self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(y + x, inplace=True)


class ResNetCifar(nn.Module):
    def __init__(self, depth, classes):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        blocks, channels = [], 16
        for width in (16, 32, 64):
            for i in range((depth - 2) // 6):
                blocks.append(Block(channels, width, 2 if width > 16 and i == 0 else 1))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(64, classes)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)), inplace=True)
        return self.linear(self.blocks(x).mean((2, 3)))


class Bottleneck(nn.Module):
    def __init__(self, inner, width, stride):
        super().__init__()
        outer = 4 * width
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outer, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outer)
        self.shortcut = None
        if inner != outer or stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)
        y = self.norm3(self.conv3(y))
        if self.shortcut is not None:
            x = self.shortcut(x)
        y += x
        return F.relu(y, inplace=True)


class ResNet50(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks, channels = [], 64
        for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for i in range(count):
                blocks.append(Bottleneck(channels, width, 2 if width > 64 and i == 0 else 1))
                channels = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.pool(F.relu(self.norm(self.conv(x)), inplace=True))
        return self.linear(self.blocks(x).mean((2, 3)))


def make_model(name, classes):
    return ResNet50(classes) if name == "resnet50" else ResNetCifar(int(name[len("resnet") :]), classes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="resnet50, or resnetN with N layers for CIFAR")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, required=True, help="of each rank")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--channels-last", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = make_model(args.model, args.classes).to(memory_format=layout)
    # With one rank, DDP would only add overhead.
    if dist.get_world_size() > 1:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4, foreach=True)
    torch.manual_seed(rank)
    batches = [
        (
            torch.randn(args.batch, 3, args.image_size, args.image_size).contiguous(memory_format=layout),
            torch.randint(args.classes, (args.batch,)),
        )
        for _ in range(4)
    ]
    seconds = []
    dist.barrier()
    for step in range(args.steps):
        begin = time.perf_counter()
        images, labels = batches[step % len(batches)]
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        loss.item()
        if step >= args.warmup:
            seconds.append(time.perf_counter() - begin)
    dist.barrier()
    if rank == 0:
        print(f"torch {torch.__version__}, median step seconds {statistics.median(seconds):.6f}")


if __name__ == "__main__":
    main()
