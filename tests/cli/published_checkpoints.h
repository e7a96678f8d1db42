// The published checkpoints as their config.json describes them, and what is known of their sizes. A further one is a
// line in published_checkpoints(); families that are not in the program yet are skipped by the tests that read it.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace tensorfold::testing {

using nlohmann::json;

struct PublishedCheckpoint {
  std::string name;            ///< of the test
  std::string repo;            ///< owner/name
  json config;                 ///< config.json
  double weights = 0;          ///< published bytes of the text weights without the draft head
  double read = 0;             ///< published bytes that a token reads; 0: unknown
  double draft_head = 0;       ///< published bytes of the draft head; 0: none
  double cache_token = 0;      ///< bytes a token keeps with a 16-bit cache; 0: unknown
  std::string side_file = {};  ///< where the draft head lies, when not in the shards
  double on_disk = 0;          ///< of the weights, what is looked up in the files and never loaded
};

inline json affine(int bits, int group) { return {{"bits", bits}, {"group_size", group}, {"mode", "affine"}}; }

/// Qwen3.8-27B; `quantization` null: bf16.
inline json qwen_27b_config(const json& quantization) {
  json config = json::parse(R"({
    "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "language_model_only": false,
    "tie_word_embeddings": false, "image_token_id": 248056, "video_token_id": 248057,
    "text_config": {
      "model_type": "qwen3_5_text", "dtype": "bfloat16", "hidden_size": 5120, "intermediate_size": 17408,
      "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256,
      "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
      "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
      "attn_output_gate": true, "output_gate_type": "swish", "mamba_ssm_dtype": "float32", "hidden_act": "silu",
      "attention_bias": false, "attention_dropout": 0.0, "mlp_only_layers": [], "vocab_size": 248320,
      "rms_norm_eps": 1e-6, "max_position_embeddings": 262144, "tie_word_embeddings": false,
      "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10], "mrope_interleaved": true},
      "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false, "eos_token_id": 248044
    }})");
  if (!quantization.is_null()) config["quantization"] = quantization;
  return config;
}

/// NVIDIA Nemotron 3.5 Lightning 30B-A3B.
inline json nemotron_config(const json& quantization) {
  json config = json::parse(R"({
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "vocab_size": 131072, "hidden_size": 2688,
    "num_hidden_layers": 52, "max_position_embeddings": 1048576, "layer_norm_epsilon": 1e-5, "norm_eps": 1e-5,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "attention_bias": false,
    "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "expand": 2,
    "mamba_hidden_act": "silu", "mamba_proj_bias": false, "use_bias": false, "use_conv_bias": true,
    "n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 1, "moe_intermediate_size": 1856,
    "intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": true, "routed_scaling_factor": 2.5, "mlp_hidden_act": "relu2", "mlp_bias": false,
    "num_nextn_predict_layers": 1, "mtp_layers_block_type": ["attention", "moe"], "tie_word_embeddings": false,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0
  })");
  if (!quantization.is_null()) config["quantization"] = quantization;
  return config;
}

/// Gemma 4 26B-A4B; packed: with its routers in 8 bits.
inline json gemma_config(const json& quantization) {
  json text = json::parse(R"({
    "model_type": "gemma4_text", "vocab_size": 262144, "hidden_size": 2816, "num_hidden_layers": 30,
    "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2, "head_dim": 256,
    "global_head_dim": 512, "attention_k_eq_v": true, "attention_bias": false, "sliding_window": 1024,
    "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
      "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25}},
    "max_position_embeddings": 262144, "intermediate_size": 2112, "enable_moe_block": true, "num_experts": 128,
    "top_k_experts": 8, "moe_intermediate_size": 704, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
    "final_logit_softcapping": 30.0, "tie_word_embeddings": true, "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0, "use_double_wide_mlp": false, "bos_token_id": 2, "eos_token_id": 1
  })");
  for (int layer = 0; layer < 30; ++layer)
    text["layer_types"].push_back(layer % 6 == 5 ? "full_attention" : "sliding_attention");
  json config = {{"architectures", {"Gemma4ForConditionalGeneration"}},
                 {"model_type", "gemma4"},
                 {"eos_token_id", {1, 106}},
                 {"text_config", text}};
  if (quantization.is_null()) return config;
  config["quantization"] = quantization;
  for (int layer = 0; layer < 30; ++layer)
    config["quantization"]["language_model.model.layers." + std::to_string(layer) + ".router.proj"] = {
        {"group_size", 64}, {"bits", 8}};
  return config;
}

/// Qwen3.8 Flash Next.
inline json flash_next_config(const json& quantization) {
  json config = json::parse(R"({
    "architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp", "language_model_only": false,
    "tie_word_embeddings": false, "eos_token_id": [248046, 248044],
    "text_config": {
      "model_type": "qwen4_exp_text", "dtype": "bfloat16", "hidden_size": 2560, "num_hidden_layers": 48,
      "full_attention_interval": 4, "vocab_size": 248320, "tie_word_embeddings": false, "hidden_act": "silu",
      "rms_norm_eps": 1e-6, "attention_bias": false, "attention_dropout": 0.0, "use_cache": true,
      "max_position_embeddings": 262144, "num_attention_heads": 24, "num_key_value_heads": 2, "head_dim": 256,
      "partial_rotary_factor": 0.25,
      "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10], "mrope_interleaved": true},
      "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 2048,
      "indexer_compress_ratio": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
      "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
      "output_gate_type": "sigmoid", "mamba_ssm_dtype": "float32", "num_experts": 512, "num_experts_per_tok": 10,
      "moe_intermediate_size": 640, "shared_expert_intermediate_size": 640, "norm_topk_prob": true, "hc_count": 4,
      "hc_lowrank": 320, "ple_layer_ids": [2], "ple_embed_dim": 2560, "ple_conv_kernel_size": 4, "ngram_size": 3,
      "heads_per_ngram": 8, "ngram_vocab_size_base": 20000000, "make_ngram_vocab_size_divisible_by": 128,
      "split_ngram_parts": 128, "eos_token_id": 248044, "mtp_num_hidden_layers": 1,
      "mtp_use_dedicated_embeddings": false,
      "mtp": {"hybrid": true, "layer_types": ["full_attention"], "num_hidden_layers": 1, "rope_theta": 10000000}
    }})");
  for (int layer = 0; layer < 48; ++layer)
    config["text_config"]["layer_types"].push_back(layer % 4 == 3 ? "full_attention" : "linear_attention");
  if (!quantization.is_null()) config["quantization"] = quantization;
  return config;
}

/// GLM-5.3-Flash.
inline json glm_config(const json& quantization) {
  json config = json::parse(R"({
    "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next", "tie_word_embeddings": false,
    "image_token_id": 154854, "video_token_id": 154855,
    "text_config": {
      "model_type": "glm5_next_text", "dtype": "bfloat16", "hidden_size": 4096, "num_hidden_layers": 45,
      "vocab_size": 154880, "rms_norm_eps": 1e-5, "num_attention_heads": 64, "num_key_value_heads": 64,
      "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256,
      "head_dim": 0, "mla_use_nope": true, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048,
      "index_kpool": 4, "index_kpool_always_select_tail": true, "index_kpool_compress": true,
      "index_share_for_mtp_iteration": true, "indexer_rope_interleave": true, "first_k_dense_replace": 3,
      "intermediate_size": 12288, "moe_intermediate_size": 2048, "n_routed_experts": 288, "num_experts_per_tok": 8,
      "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
      "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_router_dtype": "float32", "hidden_act": "silu",
      "swiglu_limit": 10.0,
      "linear_attn_config": {"num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0},
      "mhc": true, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20, "num_nextn_predict_layers": 1,
      "max_position_embeddings": 1048576, "attention_bias": false, "attention_dropout": 0.0,
      "eos_token_id": [154820, 154827, 154829], "tie_word_embeddings": false
    }})");
  json& text = config["text_config"];
  for (int layer = 0; layer < 45; ++layer) {
    const bool sparse = layer % 4 == 3;
    text["layer_types"].push_back(sparse ? "deepseek_sparse_attention" : "linear_attention");
    text["linear_attn_config"][sparse ? "full_attn_layers" : "kda_layers"].push_back(layer);
    text["mlp_layer_types"].push_back(layer < 3 ? "dense" : "sparse");
    text["indexer_types"].push_back("full");
  }
  if (!quantization.is_null()) config["quantization"] = quantization;
  return config;
}

inline std::vector<PublishedCheckpoint> published_checkpoints() {
  const std::string qwen = "TensorFold/Qwen3.8-27B-MLX-4bit";
  return {
      {"Qwen27BAffine4", qwen, qwen_27b_config(affine(4, 64)), 15.13e9, 14.41e9, 0, 65'536 + 4'096},
      {"Qwen27BAffine4Group32", "ORG/Qwen-g32", qwen_27b_config(affine(4, 32)), 16.81e9, 16.01e9, 0, 65'536 + 4'096},
      {"Qwen27BAffine3", "ORG/Qwen-3bit", qwen_27b_config(affine(3, 64)), 11.77e9, 11.21e9, 0, 65'536 + 4'096},
      {"Qwen27BAffine6", "ORG/Qwen-6bit", qwen_27b_config(affine(6, 64)), 21.85e9, 20.82e9, 0, 65'536 + 4'096},
      {"Qwen27BAffine8", "ORG/Qwen-8bit", qwen_27b_config(affine(8, 64)), 28.57e9, 27.22e9, 0, 65'536 + 4'096},
      {"Qwen27BOriginal", "Qwen/Qwen3.8-27B", qwen_27b_config(nullptr), 53.79e9, 51.24e9, 0, 65'536 + 4'096},
      {"Nemotron4Bit", "TensorFold/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-MLX-4bit", nemotron_config(affine(4, 64)),
       17'775'339'392.0, 1.811e9 + 15.8e6, 0.752e9, 6'144 + 1'024, "mtp-4bit.safetensors"},
      {"NemotronOriginal", "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16", nemotron_config(nullptr), 2 * 31.58e9},
      {"Gemma4Bit", "mlx-community/gemma-4-26b-a4b-it-4bit", gemma_config(affine(4, 64)), 14.19e9, 2.155e9},
      {"GemmaOriginal", "google/gemma-4-26B-A4B-it", gemma_config(nullptr), 2 * 25.23e9},
      {"FlashNext4Bit", "TensorFold/Qwen3.8-Flash-Next-MLX-4bit-MTP", flash_next_config(affine(4, 32)),
       113.21e9 - 0.898e9 - 1.63e9, 4.25e9, 1.63e9, 0, "", 32.0e9},
      {"Glm4Bit", "TensorFold/GLM-5.3-Flash-MLX-4bit-MTP", glm_config(affine(4, 64)), 176.3e9, 0, 4.18e9},
  };
}

}  // namespace tensorfold::testing
