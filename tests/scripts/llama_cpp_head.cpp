// Runs a head through llama.cpp's own graphs: see record_llama_cpp_heads.py, which builds this.
//
//     llama_cpp_head TARGET HEAD INPUT OUTPUT
//
// INPUT:  int32 n, m and width, int32[n] tokens, float[m, width] the target's states. From the m-th token on,
//         the head gets what it gave before.
// OUTPUT: int32 vocabulary, hidden and taps; float[n, vocabulary + hidden] logits and states; then for each
// tap
//         float[n, target's hidden], the inputs of that layer of the target after the same tokens.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama-ext.h"
#include "llama.h"

namespace {

void check(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "llama.cpp: %s failed\n", what);
    std::exit(1);
}

llama_model* loaded(const char* path) {
    llama_model* model = llama_model_load_from_file(path, llama_model_default_params());
    check(model != nullptr, path);
    return model;
}

// With keys and values in float, and one thread.
llama_context* context(llama_model* model, llama_context* other) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.ctx_other = other;
    llama_context* made = llama_init_from_model(model, params);
    check(made != nullptr, "a context");
    return made;
}

void put(FILE* file, const void* data, size_t size) {
    check(std::fwrite(data, 1, size, file) == size, "writing");
}

void take(FILE* file, void* data, size_t size) { check(std::fread(data, 1, size, file) == size, "reading"); }

}  // namespace

int main(int count, char** arguments) {
    check(count == 5, "TARGET HEAD INPUT OUTPUT");
    llama_backend_init();
    llama_model *target = loaded(arguments[1]), *head = loaded(arguments[2]);
    llama_context* reader = context(target, nullptr);
    llama_context* drafter = context(head, reader);
    llama_set_embeddings_nextn(drafter, true, true);

    FILE* in = std::fopen(arguments[3], "rb");
    check(in != nullptr, arguments[3]);
    int32_t sizes[3];
    take(in, sizes, sizeof sizes);
    const int32_t n = sizes[0], m = sizes[1];
    const size_t width = size_t(sizes[2]), hidden = size_t(llama_model_n_embd(head));
    std::vector<llama_token> tokens(n);
    std::vector<float> states(m * width), reduced(m * hidden), given(hidden);
    take(in, tokens.data(), n * sizeof(llama_token));
    take(in, states.data(), states.size() * sizeof(float));
    std::fclose(in);

    FILE* out = std::fopen(arguments[4], "wb");
    check(out != nullptr, arguments[4]);
    const int32_t vocab = llama_vocab_n_tokens(llama_model_get_vocab(head));
    const int32_t taps = int32_t(llama_model_target_layer_ids_n(head));
    const int32_t header[3] = {vocab, int32_t(hidden), taps};
    put(out, header, sizeof header);

    llama_batch_ext* batch = llama_batch_ext_init(drafter);
    for (llama_pos at = 0; at < m; at++) {
        const int32_t i = llama_batch_ext_add_embd(batch, 0, {states.data() + at * width, 1, width});
        llama_batch_ext_set_pos(batch, i, &at);
        llama_batch_ext_set_output_logits(batch, i, true);
    }
    check(llama_process(drafter, LLAMA_PROCESS_TYPE_ENCODE, batch) == 0, "encoding");
    const float* encoded = llama_get_embeddings_nextn(drafter);
    reduced.assign(encoded, encoded + reduced.size());
    for (llama_pos at = 0; at < n; at++) {
        llama_batch_ext_clear(batch);
        const int32_t i = llama_batch_ext_add_token(batch, 0, tokens[at]);
        const float* state = at < m ? reduced.data() + at * hidden : given.data();
        llama_batch_ext_set_pos(batch, i, &at);
        llama_batch_ext_set_embd_token(batch, i, {state, 1, hidden});
        llama_batch_ext_set_output_logits(batch, i, true);
        check(llama_process(drafter, LLAMA_PROCESS_TYPE_DECODE, batch) == 0, "decoding");
        const float* after = llama_get_embeddings_nextn_ith(drafter, 0);
        put(out, llama_get_logits_ith(drafter, 0), vocab * sizeof(float));
        put(out, after, hidden * sizeof(float));
        given.assign(after, after + hidden);
    }

    const int32_t* layers = llama_model_target_layer_ids(head);
    for (int32_t k = 0; k < taps; k++) llama_set_embeddings_layer_inp(reader, uint32_t(layers[k]), true);
    check(llama_decode(reader, llama_batch_get_one(tokens.data(), n)) == 0, "the target");
    const size_t rows = size_t(n) * llama_model_n_embd(target);
    for (int32_t k = 0; k < taps; k++)
        put(out, llama_get_embeddings_layer_inp(reader, uint32_t(layers[k])), rows * sizeof(float));
    std::fclose(out);
}
