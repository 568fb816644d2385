"""Foundations: operators, loops on and off the device, files of arrays, dense kernels, sharding."""
