"""Modules as XLA writes them, shortened: of a TPU and of a GPU, which need not be installed."""

TPU = """\
HloModule jit_step, is_scheduled=true

%fused_computation.1 (param_0.1: bf16[8,256,256], param_1.1: s32[]) -> bf16[256,256] {
  %param_0.1 = bf16[8,256,256]{2,1,0:T(8,128)(2,1)} parameter(0)
  %param_1.1 = s32[]{:T(128)} parameter(1)
  ROOT %convolution.1 = bf16[256,256]{1,0:T(8,128)(2,1)} convolution(%param_0.1, %param_0.1), dim_labels=bf_io->bf
}

%body (arg: (s32[], bf16[256,256], bf16[8,256,256], /*index=3*/s32[])) -> (s32[], bf16[256,256], bf16[8,256,256], s32[]) {
  %one = s32[]{:T(128)} constant(1)
  %arg = (s32[]{:T(128)}, bf16[256,256]{1,0:T(8,128)(2,1)S(1)}, bf16[8,256,256]{2,1,0:T(8,128)(2,1)}, /*index=3*/s32[]{:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%arg), index=0
  %stack = bf16[8,256,256]{2,1,0:T(8,128)(2,1)} get-tuple-element(%arg), index=2
  %limit = s32[]{:T(128)} get-tuple-element(%arg), index=3
  %fusion.1 = bf16[256,256]{1,0:T(8,128)(2,1)S(1)} fusion(%stack, %i), kind=kOutput, calls=%fused_computation.1, backend_config={"flag_configs":[],"window_config":{"output_window_bounds":["256","2"],"estimated_cycles":"3000","iteration_bounds":["4","1"]},"aliasing_operands":{"lists":[]}}
  %add.1 = s32[]{:T(128)} add(%i, %one), backend_config={"flag_configs":[]}
  ROOT %tuple.1 = (s32[]{:T(128)}, bf16[256,256]{1,0:T(8,128)(2,1)S(1)}, bf16[8,256,256]{2,1,0:T(8,128)(2,1)}, /*index=3*/s32[]{:T(128)}) tuple(%add.1, %fusion.1, %stack, /*index=3*/%limit)
}

%condition (arg.1: (s32[], bf16[256,256], bf16[8,256,256], /*index=3*/s32[])) -> pred[] {
  %arg.1 = (s32[]{:T(128)}, bf16[256,256]{1,0:T(8,128)(2,1)S(1)}, bf16[8,256,256]{2,1,0:T(8,128)(2,1)}, /*index=3*/s32[]{:T(128)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%arg.1), index=0
  %limit.1 = s32[]{:T(128)} get-tuple-element(%arg.1), index=3
  ROOT %lt = pred[]{:T(512)} compare(%i.1, %limit.1), direction=LT
}

ENTRY %main (w: bf16[8,256,256], x: bf16[256,256]) -> bf16[256,256] {
  %w = bf16[8,256,256]{2,1,0:T(8,128)(2,1)} parameter(0)
  %x = bf16[256,256]{1,0:T(8,128)(2,1)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %eight = s32[]{:T(128)} constant(8)
  %copy-start = (bf16[256,256]{1,0:T(8,128)(2,1)S(1)}, bf16[256,256]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%x)
  %copy-done = bf16[256,256]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  %copy.1 = s32[]{:T(128)} copy(%zero), backend_config={"flag_configs":[]}
  %tuple = (s32[]{:T(128)}, bf16[256,256]{1,0:T(8,128)(2,1)S(1)}, bf16[8,256,256]{2,1,0:T(8,128)(2,1)}, /*index=3*/s32[]{:T(128)}) tuple(%copy.1, %copy-done, %w, /*index=3*/%eight)
  %while.1 = (s32[]{:T(128)}, bf16[256,256]{1,0:T(8,128)(2,1)S(1)}, bf16[8,256,256]{2,1,0:T(8,128)(2,1)}, /*index=3*/s32[]{:T(128)}) while(%tuple), condition=%condition, body=%body
  %out = bf16[256,256]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%while.1), index=1
  ROOT %negate.1 = bf16[256,256]{1,0:T(8,128)(2,1)} negate(%out), backend_config={"flag_configs":[],"window_config":{"estimated_cycles":"600"}}
}
"""
"""A counted loop of eight steps of 3000 cycles, whose limit is carried, and one kernel of 600 cycles."""

GPU = """\
HloModule jit_step, is_scheduled=true

%gemm_computation (p0: bf16[512,256], p1: bf16[256,128]) -> bf16[512,128] {
  %p0 = bf16[512,256]{1,0} parameter(0), metadata={scheduling_name="p0"}
  %p1 = bf16[256,128]{1,0} parameter(1), metadata={scheduling_name="p1"}
  ROOT %dot.1 = bf16[512,128]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}, backend_config={"sizes":["16"]}
}

%fused_slice (p2: bf16[6,512,256], p3: s32[]) -> bf16[1,512,256] {
  %p2 = bf16[6,512,256]{2,1,0} parameter(0)
  %p3 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %slice.1 = bf16[1,512,256]{2,1,0} dynamic-slice(%p2, %p3, %zero, %zero), dynamic_slice_sizes={1,512,256}
}

%fused_update (p4: bf16[6,512,128], p5: s32[], p6: bf16[512,128]) -> bf16[6,512,128] {
  %p4 = bf16[6,512,128]{2,1,0} parameter(0)
  %p6 = bf16[512,128]{1,0} parameter(2)
  %neg = bf16[512,128]{1,0} negate(%p6)
  %row = bf16[1,512,128]{2,1,0} bitcast(%neg)
  %p5 = s32[] parameter(1)
  %zero.1 = s32[] constant(0)
  ROOT %update.1 = bf16[6,512,128]{2,1,0} dynamic-update-slice(%p4, %row, %p5, %zero.1, %zero.1)
}

ENTRY %main (stack: bf16[6,512,256], w: bf16[256,128], into: bf16[6,512,128], i: s32[]) -> (bf16[6,512,128], f32[512,512]) {
  %stack = bf16[6,512,256]{2,1,0} parameter(0)
  %w = bf16[256,128]{1,0} parameter(1)
  %into = bf16[6,512,128]{2,1,0} parameter(2)
  %i = s32[] parameter(3)
  %fusion-start = ((bf16[6,512,256]{2,1,0}, s32[]), bf16[1,512,256]{2,1,0}, u32[]) fusion-start(%stack, %i), kind=kLoop, calls=%fused_slice
  %fusion-done = bf16[1,512,256]{2,1,0} fusion-done(%fusion-start)
  %x = bf16[512,256]{1,0} bitcast(%fusion-done)
  %gemm = bf16[512,128]{1,0} fusion(%x, %w), kind=kCustom, calls=%gemm_computation, backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}
  %updated = bf16[6,512,128]{2,1,0} fusion(%into, %i, %gemm), kind=kLoop, calls=%fused_update
  %cublas = (f32[512,512]{1,0}, s8[4194304]{0}) custom-call(%x, %x), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["1"]}}}
  %product = f32[512,512]{1,0} get-tuple-element(%cublas), index=0
  ROOT %tuple = (bf16[6,512,128]{2,1,0}, f32[512,512]{1,0}) tuple(%updated, %product)
}
"""
"""A slice of a stack, a product by Triton, an update in place, a product by cuBLAS."""
