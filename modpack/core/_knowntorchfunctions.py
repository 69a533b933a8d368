"""Functions below torch's public packages that objects may hold: data for the list of known names.

They compute with tensors, change how torch computes, or wrap what they are given, to call it later:
none reads or writes files, runs texts, imports by a name, or gives access to what it can reach.
Not here are therefore what loads, saves, exports, compiles or registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modpack.core._knownquantization import QUANTIZING

__all__ = ["FUNCTIONS"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS: Final[Mapping[str, frozenset[str]]] = {
    **QUANTIZING,
    "torch": _names(
        """
        _sym_sqrt are_deterministic_algorithms_enabled autocast_decrement_nesting
        autocast_increment_nesting broadcast_tensors clear_autocast_cache
        get_autocast_cpu_dtype get_autocast_dtype get_autocast_gpu_dtype
        get_autocast_ipu_dtype get_autocast_xla_dtype get_default_device get_default_dtype
        get_deterministic_debug_mode get_float32_matmul_precision get_num_interop_threads
        get_num_threads is_anomaly_check_nan_enabled is_anomaly_enabled
        is_autocast_cache_enabled is_autocast_cpu_enabled is_autocast_enabled
        is_autocast_ipu_enabled is_autocast_xla_enabled
        is_deterministic_algorithms_warn_only_enabled is_grad_enabled
        is_inference_mode_enabled is_storage is_tensor is_warn_always_enabled
        set_anomaly_enabled set_autocast_cache_enabled set_autocast_cpu_dtype
        set_autocast_cpu_enabled set_autocast_dtype set_autocast_enabled
        set_autocast_gpu_dtype set_autocast_ipu_dtype set_autocast_ipu_enabled
        set_autocast_xla_dtype set_autocast_xla_enabled set_default_device set_default_dtype
        set_deterministic_debug_mode set_float32_matmul_precision set_flush_denormal
        set_num_interop_threads set_num_threads set_warn_always sym_float sym_fresh_size
        sym_int sym_ite sym_max sym_min sym_not sym_sum typename
        use_deterministic_algorithms vmap
        """
    ),
    "torch._C": _names(
        """
        _get_tracing_state _has_torch_function _has_torch_function_unary
        _has_torch_function_variadic
        """
    ),
    "torch._C._nested": _names("nested_to_padded_tensor"),
    "torch._C._sparse": _names("_sparse_addmm _sparse_log_softmax _sparse_mm _sparse_softmax"),
    "torch._functorch.apis": _names("grad grad_and_value vmap"),
    "torch._functorch.eager_transforms": _names(
        """
        functionalize hessian jacfwd jacrev jvp linearize vjp
        """
    ),
    "torch._functorch.functional_call": _names("functional_call stack_module_state"),
    "torch._jit_internal": _names("export ignore is_scripting unused"),
    "torch._lobpcg": _names("lobpcg"),
    "torch._lowrank": _names("pca_lowrank svd_lowrank"),
    "torch._tensor_str": _names("set_printoptions"),
    "torch.accelerator": _names(
        """
        current_accelerator current_device_idx current_device_index current_stream
        device_count is_available set_device_index synchronize
        """
    ),
    "torch.accelerator.memory": _names(
        """
        empty_cache empty_host_cache get_memory_info max_memory_allocated
        max_memory_reserved memory_allocated memory_reserved memory_stats
        reset_accumulated_memory_stats reset_peak_memory_stats
        """
    ),
    "torch.amp.autocast_mode": _names("autocast custom_bwd custom_fwd is_autocast_available"),
    "torch.amp.grad_scaler": _names("_refresh_per_optimizer_state"),
    "torch.autograd": _names("backward grad"),
    "torch.autograd.anomaly_mode": _names("detect_anomaly set_detect_anomaly"),
    "torch.autograd.forward_ad": _names(
        """
        dual_level enter_dual_level exit_dual_level make_dual unpack_dual
        """
    ),
    "torch.autograd.function": _names("once_differentiable"),
    "torch.autograd.functional": _names("hessian hvp jacobian jvp vhp vjp"),
    "torch.autograd.grad_mode": _names("enforce_grad_layout_policy set_multithreading_enabled"),
    "torch.autograd.gradcheck": _names("gradcheck gradgradcheck"),
    "torch.autograd.graph": _names(
        """
        allow_mutation_on_saved_tensors disable_saved_tensors_hooks get_gradient_edge
        increment_version register_multi_grad_hook save_on_cpu saved_tensors_hooks
        """
    ),
    "torch.autograd.profiler": _names("emit_itt emit_nvtx profile record_function"),
    "torch.backends.cuda": _names(
        """
        allow_fp16_bf16_reduction_math_sdp blas_workspace_size can_use_cudnn_attention
        can_use_efficient_attention can_use_flash_attention cublas_workspace_size
        cublaslt_workspace_size cudnn_sdp_enabled enable_cudnn_sdp enable_flash_sdp
        enable_math_sdp enable_mem_efficient_sdp flash_sdp_enabled
        fp16_bf16_reduction_math_sdp_allowed is_built is_ck_sdpa_available
        is_flash_attention_available math_sdp_enabled mem_efficient_sdp_enabled
        preferred_blas_library preferred_linalg_library preferred_rocm_fa_library sdp_kernel
        """
    ),
    "torch.compiler": _names(
        """
        allow_in_graph assume_constant_result cudagraph_mark_step_begin disable is_compiling
        is_dynamo_compiling is_exporting nested_compile_region wrap_numpy
        """
    ),
    "torch.cpu": _names(
        """
        current_device current_stream device_count is_available is_initialized synchronize
        """
    ),
    "torch.cpu.amp.autocast_mode": _names("autocast"),
    "torch.cuda": _names(
        """
        current_device current_stream default_stream device_count get_device_capability
        get_device_name get_device_properties is_available is_bf16_supported is_initialized
        is_tf32_supported set_device synchronize
        """
    ),
    "torch.cuda.amp.autocast_mode": _names("autocast custom_bwd custom_fwd"),
    "torch.cuda.amp.common": _names("amp_definitely_not_available"),
    "torch.cuda.memory": _names(
        """
        empty_cache max_memory_allocated max_memory_reserved mem_get_info memory_allocated
        memory_reserved reset_peak_memory_stats
        """
    ),
    "torch.cuda.random": _names(
        """
        get_rng_state get_rng_state_all initial_seed manual_seed manual_seed_all seed
        seed_all set_rng_state set_rng_state_all
        """
    ),
    "torch.distributions.constraint_registry": _names(
        """
        _biject_to_cat _biject_to_independent _biject_to_simplex _biject_to_stack
        _transform_to_cat _transform_to_corr_cholesky _transform_to_greater_than
        _transform_to_independent _transform_to_interval _transform_to_less_than
        _transform_to_lower_cholesky _transform_to_positive_definite _transform_to_real
        _transform_to_simplex _transform_to_stack
        """
    ),
    "torch.distributions.constraints": _names(
        """
        boolean corr_cholesky is_dependent lower_cholesky lower_triangular one_hot
        positive_definite positive_semidefinite real simplex square symmetric
        """
    ),
    "torch.distributions.kl": _names("kl_divergence"),
    "torch.distributions.utils": _names(
        """
        broadcast_all clamp_probs logits_to_probs probs_to_logits tril_matrix_to_vec
        vec_to_tril_matrix
        """
    ),
    "torch.func": _names(
        """
        functional_call functionalize grad grad_and_value hessian jacfwd jacrev jvp
        linearize rearrange replace_all_batch_norm_modules_ stack_module_state vjp vmap
        """
    ),
    "torch.jit": _names("annotate isinstance"),
    "torch.jit._trace": _names("is_tracing"),
    "torch.masked._ops": _names(
        """
        amax amin argmax argmin cumprod cumsum log_softmax logaddexp logsumexp mean median
        norm normalize prod softmax softmin std sum var
        """
    ),
    "torch.masked.maskedtensor.core": _names("is_masked_tensor"),
    "torch.masked.maskedtensor.creation": _names("as_masked_tensor masked_tensor"),
    "torch.nested": _names(
        """
        as_nested_tensor masked_select narrow nested_tensor nested_tensor_from_jagged
        """
    ),
    "torch.nn": _names("factory_kwargs"),
    "torch.nn.attention": _names(
        """
        current_flash_attention_impl list_flash_attention_impls sdpa_kernel
        """
    ),
    "torch.nn.attention.bias": _names("causal_lower_right causal_upper_left"),
    "torch.nn.attention.flex_attention": _names(
        """
        and_masks create_block_mask create_mask flex_attention noop_mask or_masks
        """
    ),
    "torch.nn.grad": _names(
        """
        conv1d_input conv1d_weight conv2d_input conv2d_weight conv3d_input conv3d_weight
        """
    ),
    "torch.nn.parallel.data_parallel": _names("data_parallel"),
    "torch.nn.parallel.parallel_apply": _names("parallel_apply"),
    "torch.nn.parallel.replicate": _names("replicate"),
    "torch.nn.parallel.scatter_gather": _names("gather scatter"),
    "torch.nn.parameter": _names("is_lazy"),
    "torch.nn.utils.clip_grad": _names(
        """
        _clip_grads_with_norm_ _get_total_norm clip_grad_norm clip_grad_norm_
        clip_grad_value_
        """
    ),
    "torch.nn.utils.convert_parameters": _names("parameters_to_vector vector_to_parameters"),
    "torch.nn.utils.fusion": _names(
        """
        fuse_conv_bn_eval fuse_conv_bn_weights fuse_linear_bn_eval fuse_linear_bn_weights
        """
    ),
    "torch.nn.utils.init": _names("skip_init"),
    "torch.nn.utils.memory_format": _names(
        """
        convert_conv2d_weight_memory_format convert_conv3d_weight_memory_format
        """
    ),
    "torch.nn.utils.parametrizations": _names("orthogonal spectral_norm weight_norm"),
    "torch.nn.utils.parametrize": _names(
        """
        cached is_parametrized register_parametrization remove_parametrizations
        transfer_parametrizations_and_params type_before_parametrizations
        """
    ),
    "torch.nn.utils.prune": _names(
        """
        custom_from_mask global_unstructured identity is_pruned l1_unstructured
        ln_structured random_structured random_unstructured remove
        """
    ),
    "torch.nn.utils.rnn": _names(
        """
        invert_permutation pack_padded_sequence pack_sequence pad_packed_sequence
        pad_sequence unpack_sequence unpad_sequence
        """
    ),
    "torch.nn.utils.spectral_norm": _names("remove_spectral_norm spectral_norm"),
    "torch.nn.utils.stateless": _names("functional_call"),
    "torch.nn.utils.weight_norm": _names("remove_weight_norm weight_norm"),
    "torch.optim.adadelta": _names("adadelta"),
    "torch.optim.adagrad": _names("adagrad"),
    "torch.optim.adam": _names("adam"),
    "torch.optim.adamax": _names("adamax"),
    "torch.optim.adamw": _names("adamw"),
    "torch.optim.asgd": _names("asgd"),
    "torch.optim.nadam": _names("nadam"),
    "torch.optim.radam": _names("radam"),
    "torch.optim.rmsprop": _names("rmsprop"),
    "torch.optim.rprop": _names("rprop"),
    "torch.optim.sgd": _names("sgd"),
    "torch.optim.swa_utils": _names(
        """
        get_ema_avg_fn get_ema_multi_avg_fn get_swa_avg_fn get_swa_multi_avg_fn update_bn
        """
    ),
    "torch.overrides": _names("is_tensor_like is_tensor_method_or_property"),
    "torch.profiler.profiler": _names(
        """
        _default_schedule_fn _unreachable_transition schedule supported_activities
        """
    ),
    "torch.random": _names(
        """
        fork_rng get_rng_state initial_seed manual_seed seed set_rng_state
        thread_safe_generator
        """
    ),
    "torch.signal.windows.windows": _names(
        """
        bartlett blackman cosine exponential gaussian general_cosine general_hamming hamming
        hann kaiser nuttall
        """
    ),
    "torch.sparse": _names("sum"),
    "torch.sparse.semi_structured": _names("to_sparse_semi_structured"),
    "torch.utils._pytree": _names(
        """
        is_namedtuple is_namedtuple_class is_namedtuple_instance is_structseq
        is_structseq_class is_structseq_instance tree_all tree_all_only tree_any
        tree_any_only tree_flatten tree_flatten_with_path tree_is_leaf tree_iter tree_leaves
        tree_leaves_with_path tree_map tree_map_ tree_map_only tree_map_only_
        tree_map_with_path tree_structure tree_unflatten
        """
    ),
    "torch.utils.checkpoint": _names(
        """
        check_backward_validity checkpoint checkpoint_sequential
        create_selective_checkpoint_contexts detach_variable get_device_states
        noop_context_fn set_checkpoint_debug_enabled set_checkpoint_early_stop
        set_device_states
        """
    ),
    "torch.utils.data._utils.collate": _names(
        """
        collate collate_float_fn collate_int_fn collate_numpy_array_fn
        collate_numpy_scalar_fn collate_str_fn collate_tensor_fn default_collate
        default_convert
        """
    ),
    "torch.utils.data._utils.worker": _names("get_worker_info"),
    "torch.utils.data.datapipes.iter.combining": _names("_no_op"),
    "torch.utils.data.datapipes.map.callable": _names("default_fn"),
    "torch.utils.data.dataset": _names("random_split"),
    "torch.utils.dlpack": _names("from_dlpack"),
}
"""By module, as pickles name it."""
