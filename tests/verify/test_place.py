"""Bytes of what a step returns that the compiler refused: where results lie that do not say it themselves."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from remat_plan.verify.place import returned_bytes


def struct(*shape, dtype=jnp.float32, sharding=None):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def test_new_versions_are_in_the_memory_of_what_is_donated():
    state, batch = (struct(8), struct(8), struct(4)), struct(2)
    results = (struct(8), struct(4), struct(8)), struct(8), struct()
    assert returned_bytes((state, batch), ((True, True, True), False), results) == (32 + 16 + 32 + 32 + 4, 32 + 16 + 32)
    assert returned_bytes((state, batch), ((False, False, False), False), results)[1] == 0
    assert returned_bytes((1.0, batch), (False, True), (struct(2), struct(3))) == (8 + 12, 8)


def test_results_lie_as_arguments_of_their_type_do():
    class Half(NamedSharding):
        """On one device, of two."""

        def shard_shape(self, global_shape):
            return (global_shape[0] // 2, *global_shape[1:])

    mesh = Mesh(np.array(jax.devices("cpu")[:1]), ("data",), axis_types=(AxisType.Auto,))
    weight = struct(8, sharding=Half(mesh, P("data")))
    assert returned_bytes((weight,), (True,), (struct(8), struct(8))) == (16 + 16, 16)
    assert returned_bytes((weight,), (False,), (struct(8), struct(16))) == (16 + 64, 0)
