"""Options of ``torch.compile`` that choose how code is made, and not which programs make it.

Other options name compilers, folders or passes; where they come from a pickle, nobody has asked for
them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["COMPILE_OPTIONS"]

COMPILE_OPTIONS: Final = frozenset(
    {
        "aggressive_fusion",
        "allow_buffer_reuse",
        "conv_1x1_as_mm",
        "coordinate_descent_tuning",
        "dce",
    }
    | {"coordinate_descent_check_all_directions", "coordinate_descent_search_radius"}
    | {"cpp.enable_unsafe_math_opt_flag", "cpp.min_chunk_size", "cpp.simdlen", "cpp.threads"}
    | {
        "cpp_wrapper",
        "deterministic",
        "efficient_conv_bn_eval_fx_passes",
        "emulate_precision_casts",
    }
    | {"epilogue_fusion", "epilogue_fusion_first", "fallback_random", "force_shape_pad"}
    | {"force_fuse_int_mm_with_mul", "freezing"}
    | {"fx_graph_cache", "graph_partition", "group_fusion", "inplace_buffers"}
    | {"keep_output_stride", "layout_optimization", "max_autotune", "max_autotune_conv_backends"}
    | {"max_autotune_gemm", "max_autotune_gemm_backends", "max_autotune_gemm_search_space"}
    | {"max_autotune_pointwise", "max_fusion_size", "max_pointwise_cat_inputs", "memory_planning"}
    | {"nan_asserts", "pattern_matcher", "permute_fusion", "pick_loop_orders", "scalar_asserts"}
    | {"shape_padding", "size_asserts", "split_reductions", "static_weight_shapes"}
    | {"triton.cudagraph_skip_dynamic_graphs", "triton.cudagraph_support_input_mutation"}
    | {"triton.cudagraph_trees", "triton.cudagraphs", "triton.max_tiles", "triton.multi_kernel"}
    | {"triton.persistent_reductions", "triton.tile_reductions", "triton.unique_kernel_names"}
    | {"unroll_reductions_threshold", "use_fast_math", "use_mixed_mm"}
)
