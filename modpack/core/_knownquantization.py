"""Functions of torch that quantize and prune, and that objects may hold: data for known names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["QUANTIZING"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


QUANTIZING: Final[Mapping[str, frozenset[str]]] = {
    "torch.ao.nn.intrinsic.qat.modules.conv_fused": _names("freeze_bn_stats update_bn_stats"),
    "torch.ao.nn.quantized.functional": _names(
        """
        adaptive_avg_pool2d adaptive_avg_pool3d avg_pool2d avg_pool3d celu clamp conv1d
        conv2d conv3d elu hardsigmoid hardswish hardtanh interpolate leaky_relu linear
        max_pool1d max_pool2d threshold upsample upsample_bilinear upsample_nearest
        """
    ),
    "torch.ao.pruning.sparsifier.utils": _names(
        """
        fqn_to_module get_arg_info_from_tensor_fqn module_to_fqn
        """
    ),
    "torch.ao.quantization": _names("default_eval_fn"),
    "torch.ao.quantization.backend_config.executorch": _names("get_executorch_backend_config"),
    "torch.ao.quantization.backend_config.fbgemm": _names("get_fbgemm_backend_config"),
    "torch.ao.quantization.backend_config.native": _names(
        """
        get_native_backend_config get_native_backend_config_dict
        """
    ),
    "torch.ao.quantization.backend_config.onednn": _names("get_onednn_backend_config"),
    "torch.ao.quantization.backend_config.qnnpack": _names("get_qnnpack_backend_config"),
    "torch.ao.quantization.backend_config.tensorrt": _names(
        """
        get_tensorrt_backend_config get_tensorrt_backend_config_dict
        """
    ),
    "torch.ao.quantization.fake_quantize": _names(
        """
        disable_fake_quant disable_observer enable_fake_quant enable_observer
        """
    ),
    "torch.ao.quantization.fuse_modules": _names("fuse_modules fuse_modules_qat"),
    "torch.ao.quantization.fuser_method_mappings": _names(
        """
        _reverse2 _reverse3 _sequential_wrapper2 fuse_conv_bn fuse_conv_bn_relu
        fuse_convtranspose_bn fuse_linear_bn get_fuser_method get_fuser_method_new
        """
    ),
    "torch.ao.quantization.observer": _names("get_block_size get_observer_state_dict"),
    "torch.ao.quantization.qconfig": _names(
        """
        get_default_qat_qconfig get_default_qat_qconfig_dict get_default_qconfig
        get_default_qconfig_dict qconfig_equals
        """
    ),
    "torch.ao.quantization.qconfig_mapping": _names(
        """
        get_default_qat_qconfig_mapping get_default_qconfig_mapping
        """
    ),
    "torch.ao.quantization.quantization_mappings": _names(
        """
        get_default_compare_output_module_list get_default_dynamic_quant_module_mappings
        get_default_dynamic_sparse_quant_module_mappings
        get_default_float_to_quantized_operator_mappings get_default_qat_module_mappings
        get_default_qconfig_propagation_list get_default_static_quant_module_mappings
        get_default_static_quant_reference_module_mappings
        get_default_static_sparse_quant_module_mappings get_dynamic_quant_module_class
        get_embedding_qat_module_mappings get_embedding_static_quant_module_mappings
        get_quantized_operator get_static_quant_module_class no_observer_set
        """
    ),
    "torch.ao.quantization.quantize": _names(
        """
        _observer_forward_hook add_quant_dequant convert get_default_custom_config_dict
        prepare prepare_qat propagate_qconfig_ quantize quantize_dynamic quantize_qat
        swap_module
        """
    ),
    "torch.quantization": _names("default_eval_fn"),
}
"""By module, as pickles name it."""
