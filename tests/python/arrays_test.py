#!/usr/bin/env python3
"""Which arrays prd takes. Usage: arrays_test.py BIN_DIR [TEST ...]"""
import place  # noqa: F401
from array import array as Array
import ctypes
import subprocess
import sys
import unittest

import numpy

import prd


class FromGpu:
    """What CuPy and Numba give."""

    def __init__(self, typestr="<f4", strides=None, read_only=False):
        self.__cuda_array_interface__ = {
            "data": (0x7000, read_only), "shape": (2, 3), "typestr": typestr, "strides": strides, "version": 3,
        }


class Arrays(unittest.TestCase):
    def test_dense_arrays_are_taken_where_they_are(self):
        for dtype, name in ((numpy.float32, "f32"), (numpy.float64, "f64"), (numpy.float16, "f16")):
            array = numpy.zeros((3, 4, 5), dtype)
            taken = prd.tensor(array)
            self.assertEqual((taken.pointer, taken.count, taken.dtype), (array.ctypes.data, 60, name))
            self.assertFalse(taken.on_gpu)
            self.assertIs(taken.owner, array)
        self.assertEqual(prd.tensor(numpy.zeros((), numpy.float32)).count, 1)
        self.assertEqual(prd.tensor(numpy.zeros((0, 4), numpy.float32)).count, 0)
        self.assertEqual(prd.tensor(FromGpu())[:4], (0x7000, 6, "f32", True))
        self.assertEqual(prd.tensor(FromGpu("<V2"), dtype="bf16").dtype, "bf16")

    def test_buffers_are_taken_where_they_are(self):
        for buffer, dtype, count in (
            (Array("f", [1.0, 2.0, 3.0]), "f32", 3), (Array("d", [1.0]), "f64", 1), ((ctypes.c_float * 4 * 2)(), "f32", 8),
            (memoryview(bytearray(24)).cast("d"), "f64", 3), (Array("f"), "f32", 0),
        ):
            taken = prd.tensor(buffer)
            self.assertEqual((taken.count, taken.dtype, taken.on_gpu, taken.order), (count, dtype, False, ""))
            if count:
                ctypes.memset(taken.pointer, 0, 4)
                self.assertEqual(bytes(buffer)[:4], bytes(4))
        grown = Array("f", [1.0])
        taken = prd.tensor(grown)
        with self.assertRaises(BufferError):
            grown.append(2.0)
        self.assertEqual(taken.count, 1)
        self.assertEqual(prd.tensor(Array("H", [1]), dtype="bf16").dtype, "bf16")
        self.assertEqual(len(prd.arrays.tensors(Array("f", [1.0, 2.0]), "weights")), 1, "and no sequence of two")

    def test_workers_train_without_any_library(self):
        def body(rank):
            weights, gradients = Array("f", [0.0] * 8), Array("f", [1.0 + rank] * 8)

            def apply():
                for i, gradient in enumerate(gradients):
                    weights[i] -= gradient

            with prd.Session(controller=c.endpoint, job="toy", rank=rank, timeout=60) as session:
                session.attach(weights, gradients, apply)
                session.step()
                session.finish()
            return list(weights)

        with place.Cluster(place.job("all-reduce", 2)) as c:
            self.assertEqual(place.in_threads(2, body), [[-1.5] * 8] * 2)

    def test_another_order_is_part_of_what_the_model_is(self):
        c_order = numpy.zeros((3, 4, 5), numpy.float32)
        self.assertEqual(prd.tensor(c_order).order, "")
        orders = {prd.tensor(c_order.transpose(axes)).order for axes in ((0, 2, 1), (2, 1, 0), (1, 0, 2))}
        self.assertEqual(len(orders | {""}), 4)
        self.assertEqual(prd.tensor(c_order[:, :1, :].copy().transpose(0, 2, 1)).order, "", "an axis of 1 has no place")

    def test_what_cannot_be_used_is_named(self):
        wide = numpy.zeros((4, 6), numpy.float32)
        fixed = numpy.zeros(3, numpy.float32)
        fixed.flags.writeable = False
        for array, says in (
            (wide[:, ::2], "elements lie apart"), (wide[:, :3], "elements lie apart"), (numpy.broadcast_to(wide[:1], (4, 6)).copy()[::-1],
            "elements lie apart"), (numpy.float32(0), "a number of numpy"), (numpy.zeros(3, numpy.int64), "allowed are float32"), (numpy.zeros(3, ">f4"), "allowed are float32"),
            (fixed, "is read-only"), ([1.0, 2.0], "has neither"), (b"1234", "is read-only"),
            (memoryview(bytearray(24)).cast("f")[::2], "elements lie apart"), (Array("i", [1]), "its elements are <i4, allowed are float32"), (FromGpu("<c8"), "allowed are float32"), (FromGpu(read_only=True), "is read-only"),
        ):
            with self.assertRaisesRegex(ValueError, f"^weights: .*{says}"):
                prd.tensor(array, "weights")

    def test_the_package_needs_the_standard_library_alone(self):
        code = "import sys, prd; sys.exit(any(name in sys.modules for name in ('numpy', 'torch')))"
        self.assertEqual(subprocess.run([sys.executable, "-c", code], env=dict(place.os.environ, PYTHONPATH=str(place.PACKAGE))).returncode, 0)


if __name__ == "__main__":
    unittest.main()
