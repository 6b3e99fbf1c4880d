#!/bin/bash
# A finished study as one file for other people, checked without a server, and brought into another service.
scalelab study init scaling
scalelab study submit scaling.yaml --set fixed.train_samples=512 --set fixed.image_size=8
scalelab study wait last
scalelab study bundle last -o scaling.tar
scalelab verify scaling.tar --server unix:/nowhere
scalelab study import scaling.tar --server "$OTHER_SERVER"
scalelab study import scaling.tar --server "$OTHER_SERVER"
