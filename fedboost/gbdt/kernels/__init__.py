"""Every compiled loop of gbdt: arrays in, arrays out, no objects. Nothing else there is compiled.

Promises: each kernel computes bit for bit what its numpy reference in tests/gbdt/reference computes, on
every CPU: no fastmath, no libm, element-wise functions built from + - * / in a fixed order.
Refuses nothing: callers have validated their arrays.

Shapes: N rows, F features, T bins of all features together. `bins` is uint8 [N, F or more]; `rows` uint32
row numbers; `offsets` uint32 [F], where a feature's bins begin among the T.
"""
