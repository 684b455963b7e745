/*
 * run.c - hurwitz run of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/mhc/run.h"

/* ---- Keys ------------------------------------------------------------------------------------ */

#define PRESETS \
	"deepseek_v4|deepseek_v41|glm5_next|xing4|hy_v4|qwen4_exp|megatron|transformer_engine|" \
	"tilekernels|liger|lucidrains|paper|triton|triton_static|hc|lite"

static const struct word preset_words[] = {
	{"deepseek_v4", HZ_MHC_PRESET_DEEPSEEK_V4}, {"deepseek_v41", HZ_MHC_PRESET_DEEPSEEK_V41},
	{"glm5_next", HZ_MHC_PRESET_GLM5_NEXT}, {"xing4", HZ_MHC_PRESET_XING4},
	{"hy_v4", HZ_MHC_PRESET_HY_V4}, {"megatron", HZ_MHC_PRESET_MEGATRON},
	{"tilekernels", HZ_MHC_PRESET_TILEKERNELS}, {"liger", HZ_MHC_PRESET_LIGER},
	{"transformer_engine", HZ_MHC_PRESET_TRANSFORMER_ENGINE},
	{"lucidrains", HZ_MHC_PRESET_LUCIDRAINS}, {"qwen4_exp", HZ_MHC_PRESET_QWEN4_EXP},
	{"paper", HZ_MHC_PRESET_PAPER},
	{"triton", HZ_MHC_PRESET_TRITON}, {"triton_static", HZ_MHC_PRESET_TRITON_STATIC},
	{"hc", HZ_MHC_PRESET_HC}, {"lite", HZ_MHC_PRESET_LITE}, {NULL, 0},
};

static const struct word head_words[] = {
	{"weights", HZ_MHC_HEAD_WEIGHTS}, {"mean", HZ_MHC_HEAD_MEAN}, {"sum", HZ_MHC_HEAD_SUM},
	{NULL, 0},
};

static const struct word streams_words[] = {
	{"nc", HZ_MHC_STREAMS_NC}, {"cn", HZ_MHC_STREAMS_CN}, {NULL, 0},
};

static const struct word residual_words[] = {
	{"sinkhorn", HZ_MHC_SINKHORN}, {"lite", HZ_MHC_LITE}, {"identity", HZ_MHC_IDENTITY},
	{"tanh", HZ_MHC_TANH}, {NULL, 0},
};

static const struct word map_words[] = {
	{"exp", HZ_MHC_EXP}, {"softmax", HZ_MHC_SOFTMAX}, {"abs", HZ_MHC_ABS}, {NULL, 0},
};

static const struct word order_words_mhc[] = {
	{"cols", HZ_MHC_COLS}, {"rows", HZ_MHC_ROWS}, {NULL, 0},
};

static const struct word eps_rule_words[] = {
	{"add", HZ_MHC_EPS_ADD}, {"floor", HZ_MHC_EPS_FLOOR}, {NULL, 0},
};

static const struct word rms_words[] = {
	{"all", HZ_MHC_RMS_ALL}, {"stream", HZ_MHC_RMS_STREAM}, {"none", HZ_MHC_RMS_NONE},
	{NULL, 0},
};

static const struct word rms_eps_rule_words[] = {
	{"inside", HZ_MHC_RMS_EPS_INSIDE}, {"root", HZ_MHC_RMS_EPS_ROOT},
	{"floor", HZ_MHC_RMS_EPS_FLOOR}, {NULL, 0},
};

static const struct word coefficients_words[] = {
	{"per_token", HZ_MHC_PER_TOKEN}, {"per_sequence", HZ_MHC_PER_SEQUENCE},
	{"static", HZ_MHC_STATIC}, {NULL, 0},
};

static const struct word kind_words[] = {
	{"identity", HZ_MHC_INIT_IDENTITY}, {"paper", HZ_MHC_INIT_PAPER},
	{"triton", HZ_MHC_INIT_TRITON}, {"hc", HZ_MHC_INIT_HC}, {"lite", HZ_MHC_INIT_LITE},
	{"hy_v4", HZ_MHC_INIT_HY_V4}, {NULL, 0},
};

#define STREAMS_KEY \
	{"streams", KEY_WORD, streams_words, 0, 0, "nc|cn", \
	 "order: streams are [..., n, C], the default, or [..., C, n]"}

const struct key mhc_sinkhorn_keys[] = {
	{"preset", KEY_WORD, preset_words, 0, 0, PRESETS,
	 "conventions, which further keys change; default deepseek_v4"},
	{"map", KEY_WORD, map_words, 0, 0, "exp|softmax|abs",
	 "the first step of the iteration"},
	{"order", KEY_WORD, order_words_mhc, 0, 0, "cols|rows", "what is normalised first"},
	{"iterations", KEY_INT, NULL, 1, 1000, "N", "default 20"},
	{"eps", KEY_REAL, NULL, 0, 0, "NUMBER", "added to sums of rows and columns"},
	{"eps_rule", KEY_WORD, eps_rule_words, 0, 0, "add|floor",
	 "eps is added to these sums, or their least value"},
	{"z_min", KEY_REAL, NULL, 0, 0, "NUMBER", "what is mapped is at least that"},
	{"z_max", KEY_REAL, NULL, 0, 0, "NUMBER", "and at most that"},
	END,
};

const struct key mhc_weights_keys[] = {
	{"residual", KEY_WORD, residual_words, 0, 0, "sinkhorn|lite|identity|tanh",
	 "how a is made"},
	{"p_eps", KEY_REAL, NULL, 0, 0, "NUMBER", "added to p, or to its sum"},
	{"q_scale", KEY_REAL, NULL, 0, 0, "NUMBER", "a factor of q"},
	{"q_eps", KEY_REAL, NULL, 0, 0, "NUMBER", "added to q"},
	{"rms", KEY_WORD, rms_words, 0, 0, "all|stream|none",
	 "y is that of x over its root mean square, of streams over their own, or of\nx"},
	{"rms_eps", KEY_REAL, NULL, 0, 0, "NUMBER", "added to that mean square"},
	{"rms_eps_rule", KEY_WORD, rms_eps_rule_words, 0, 0, "inside|root|floor",
	 "root: rms_eps is added to the root instead; floor: it is the least norm"},
	{"norm_eps", KEY_REAL, NULL, 0, 0, "NUMBER", "added to that of u, with norm="},
	{"old_new", KEY_WORD, switch_words, 0, 0, "0|1", "1: z is [old, new]"},
	{"normalize", KEY_WORD, switch_words, 0, 0, "0|1", "1: p is divided by its sum"},
	{"head", KEY_WORD, head_words, 0, 0, "weights|mean|sum",
	 "of mhc_head: mean and sum are those of the streams, without weights"},
	{"coefficients", KEY_WORD, coefficients_words, 0, 0, "per_token|per_sequence|static",
	 "of each token, the default; of means over sequences, of which x is\n"
	 "[S, ..., n, C]; of bias alone, without phi"},
	STREAMS_KEY,
	END,
};

static const struct key streams_keys[] = {STREAMS_KEY, END};

static const struct key expand_keys[] = {
	{"n", KEY_INT, NULL, 1, 8, "N", "streams; default 4"},
	STREAMS_KEY,
	END,
};

static const struct key init_keys[] = {
	{"n", KEY_INT, NULL, 1, 8, "N", "streams; default 4"},
	{"channels", KEY_INT, NULL, 0, INT32_MAX, "C", "of phi"},
	{"kind", KEY_WORD, kind_words, 0, 0, "identity|paper|triton|hc|lite|hy_v4",
	 "default identity: X' = X + F(mean) nearly"},
	{"layer", KEY_INT, NULL, 0, INT32_MAX, "N", "the layer's number; default 0"},
	{"seed", KEY_SEED, NULL, 0, 0, "N", "of the random numbers; default 0"},
	{"head", KEY_WORD, switch_words, 0, 0, "0|1", "1: weights of mhc_head"},
	END,
};

/* Sets a number of options, and its bit in given, if the key is there. */
static void take_number(const struct job *job, const char *key, double *number, uint32_t bit,
			uint32_t *given)
{
	const struct value *v = value_of(job, key);

	*number = v->given ? v->number : 0;
	*given |= v->given ? bit : 0;
}

/* Likewise a flag */
static void take_flag(const struct job *job, const char *key, uint32_t flag, uint32_t bit,
		      hz_mhc_opts *o)
{
	o->flags |= value_or(job, key, 0) ? flag : 0;
	o->given |= value_of(job, key)->given ? bit : 0;
}

/* The options that the keys give */
hz_mhc_opts mhc_opts(const struct job *job)
{
	hz_mhc_opts o = {
		.preset = (int32_t)value_or(job, "preset", 0),
		.coefficients = (int32_t)value_or(job, "coefficients", 0),
		.residual = (int32_t)value_or(job, "residual", 0),
		.map = (int32_t)value_or(job, "map", 0),
		.order = (int32_t)value_or(job, "order", 0),
		.iterations = (int32_t)value_or(job, "iterations", 0),
		.eps_rule = (int32_t)value_or(job, "eps_rule", 0),
		.rms = (int32_t)value_or(job, "rms", 0),
		.rms_eps_rule = (int32_t)value_or(job, "rms_eps_rule", 0),
		.head = (int32_t)value_or(job, "head", 0),
		.streams = (int32_t)value_or(job, "streams", 0),
		.flags = value_or(job, "accumulate", 0) ? HZ_MHC_ACCUMULATE : 0,
	};

	take_number(job, "eps", &o.eps, HZ_MHC_GIVEN_EPS, &o.given);
	take_number(job, "p_eps", &o.p_eps, HZ_MHC_GIVEN_P_EPS, &o.given);
	take_number(job, "q_scale", &o.q_scale, HZ_MHC_GIVEN_Q_SCALE, &o.given);
	take_number(job, "q_eps", &o.q_eps, HZ_MHC_GIVEN_Q_EPS, &o.given);
	take_number(job, "z_min", &o.z_min, HZ_MHC_GIVEN_Z_MIN, &o.given);
	take_number(job, "z_max", &o.z_max, HZ_MHC_GIVEN_Z_MAX, &o.given);
	take_number(job, "rms_eps", &o.rms_eps, HZ_MHC_GIVEN_RMS_EPS, &o.given);
	take_number(job, "norm_eps", &o.norm_eps, HZ_MHC_GIVEN_NORM_EPS, &o.given);
	take_flag(job, "old_new", HZ_MHC_OLD_NEW, HZ_MHC_GIVEN_OLD_NEW, &o);
	take_flag(job, "normalize", HZ_MHC_NORMALIZE, HZ_MHC_GIVEN_NORMALIZE, &o);
	return o;
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

const struct npy *mhc_array_of(struct job *job, const char *name)
{
	return &slot_of(job, name)->array;
}

bool mhc_given(struct job *job, const char *name)
{
	for (const struct operand *o = job->op->operands; o->name; o++) {
		if (strcmp(o->name, name) == 0)
			return slot_of(job, name)->path != NULL;
	}
	return false;
}

int mhc_check_ndim(struct job *job, const char *name, int least)
{
	const struct npy *a = mhc_array_of(job, name);

	if (mhc_given(job, name) && a->ndim < least)
		return complain(EXIT_BAD, "%s: %s.ndim is %d, must be %d at least", job->op->name,
				name, a->ndim, least);
	return 0;
}

/* Sets the shape of an output: leading dimensions, and one or two more (last < 0: one). */
void mhc_shape(struct job *job, const char *name, int dtype, int lead, const int64_t *leading,
		  int64_t size, int64_t last)
{
	struct npy *a = &slot_of(job, name)->array;

	a->dtype = dtype;
	a->ndim = lead;
	if (lead > 0)
		memcpy(a->shape, leading, (size_t)lead * sizeof(*leading));
	a->shape[a->ndim++] = size;
	if (last >= 0)
		a->shape[a->ndim++] = last;
}

int mhc_shape_as(struct job *job, const char *name, const char *as)
{
	struct slot *s = slot_of(job, name);
	const struct npy *a = mhc_array_of(job, as);

	if (!mhc_given(job, name))
		return 0;
	if (!mhc_given(job, as))
		return complain(EXIT_BAD, "%s: %s= needs %s=", job->op->name, name, as);
	s->array.dtype = a->dtype;
	s->array.ndim = a->ndim;
	memcpy(s->array.shape, a->shape, sizeof(a->shape));
	return 0;
}

/* mhc_shape_as() for pairs of an output and its model; NULL ends the list. */
int mhc_shape_all(struct job *job, const char *const (*pairs)[2])
{
	int status = 0;

	for (; (*pairs)[0] && !status; pairs++)
		status = mhc_shape_as(job, (*pairs)[0], (*pairs)[1]);
	return status;
}

/* Whether streams are [..., C, n] */
static bool is_cn(const struct job *job)
{
	const int64_t order = value_or(job, "streams", 0);

	return order ? order == HZ_MHC_STREAMS_CN :
		       value_or(job, "preset", 0) == HZ_MHC_PRESET_TRANSFORMER_ENGINE;
}

int64_t mhc_streams_of(const struct job *job, const struct npy *x)
{
	return x->shape[x->ndim - (is_cn(job) ? 1 : 2)];
}

int64_t mhc_channels_of(const struct job *job, const struct npy *x)
{
	return x->shape[x->ndim - (is_cn(job) ? 2 : 1)];
}

/* The streams of an operand as [..., n, C], for calls without options; NULL if it is absent */
static hz_tensor *nc_view(struct job *job, const char *name, hz_tensor *as)
{
	hz_tensor *const t = view_of(job, name);

	if (!t || !is_cn(job))
		return t;
	*as = hz_view_transpose(t, t->ndim - 2, t->ndim - 1);
	return as;
}

/* An output of branch values for the tokens of streams x */
void mhc_shape_branch(struct job *job, const char *name, const struct npy *x)
{
	mhc_shape(job, name, x->dtype, x->ndim - 2, x->shape, mhc_channels_of(job, x), -1);
}

/* ---- Presets --------------------------------------------------------------------------------- */

/* Layer L, tensors of a sublayer, attn or ffn; C channels, n streams */
static const struct model {
	const char *preset, *conventions, *tensors, *layout;
} models[] = {
	{"deepseek_v4", "the default: softmax rows + eps, 20 iterations, every eps 1e-6",
	 "layers.L.hc_attn_{fn,base,scale}, hc_ffn_*, hc_head_{fn,base,scale}\n"
	 "blk.L.hc_attn_{fn,base,scale}.weight, hc_ffn_*, output_hc_{fn,base,scale}.weight",
	 "phi [24, 4 C], bias [24] p|q|a[old, new], alpha [3], f32; head [4, 4 C], [4], [1]"},
	{"deepseek_v41", "as deepseek_v4, rms_eps=1e-20; p is the p_in of the next sublayer",
	 "layers.L.hc_attn_{fn,base,scale}, hc_ffn_*; none for the head", "as deepseek_v4"},
	{"glm5_next", "as deepseek_v4, rms_eps=1e-5 norm_eps=1e-5 head=mean",
	 "layers.L.hc_attn_{fn,base,scale}, hc_ffn_*; none for the head",
	 "as deepseek_v4, phi in bf16"},
	{"xing4", "map=exp order=rows eps=1e-6 z_min=-30 z_max=30 rms_eps=1e-6 head=mean",
	 "layers.L.hc_attn_{fn,base,scale}, hc_ffn_*; none for the head",
	 "bias p|q|a[new, old], else as deepseek_v4"},
	{"hy_v4", "residual=identity p_eps=1e-6 q_eps=1e-6 rms_eps=1e-5 norm_eps=1e-5",
	 "layers.L.hc_attn_{fn,base,scale}, hc_ffn_*, hc_head_{fn,base,scale}",
	 "phi [8, 4 C], bias [8] p|q, alpha [2]"},
	{"megatron", "map=exp order=rows eps=1e-6 eps_rule=floor rms_eps_rule=root head=mean",
	 "mapping_proj.weight, bias, alpha_pre, alpha_post, alpha_res of each sublayer",
	 "phi [24, 4 C], bias p|q|a[new, old], three alphas of [1]: alpha, alpha_q, alpha_a"},
	{"tilekernels", "as deepseek_v4, iterations=10 q_scale=1", "none: arguments",
	 "as deepseek_v4"},
	{"liger", "as deepseek_v4, old_new=0 p_eps=0", "none: arguments",
	 "phi [4 C, 24], to be transposed; bias p|q|a[new, old]"},
	{"transformer_engine", "map=exp order=rows old_new=1 rms_eps=1.1920929e-7 streams=cn",
	 "none: arguments", "streams [s, b, C, 4]; phi [24, 4 C] of columns c 4 + i, bias p|q|a,\n"
	 "alpha [3]"},
	{"lucidrains", "map=exp order=cols old_new=1 eps_rule=floor eps=1e-12 rms=stream\n"
	 "rms_eps_rule=floor rms_eps=1e-12 head=sum",
	 "norm.gamma, static_alpha, dynamic_alpha_fn, pre_branch_scale, residual_scale,\n"
	 "static_beta, dynamic_beta_fn, h_post_scale of each sublayer",
	 "phi [24, 4 C] from dynamic_alpha_fn [1, C, 5] and dynamic_beta_fn [C, 1]: in the\n"
	 "channels of stream i row i of p has column 0, row i of q dynamic_beta_fn, row (i, j)\n"
	 "of a column 1 + j, and 0 in other streams; gain 1 + gamma for each stream; bias\n"
	 "static_alpha[:, 0] | static_beta | static_alpha[:, 1:]; alpha pre_branch_scale,\n"
	 "h_post_scale, residual_scale"},
	{"qwen4_exp", "residual=identity rms=stream rms_eps=1e-6, with mhc_gated_pre",
	 "layers.L.{attn,mlp}_hyper_connection.{hc_norm,input_mix_weight_down,\n"
	 "input_mix_weight_up,block_inject_weight}.weight, hyper_connection_mixer.*",
	 "gain 1 + hc_norm.weight [4 C], w_down [r, 4 C], w_up [4 C, r], w_q [4, 4 C]"},
	{"paper", "arXiv 2512.24880: map=exp order=cols, every eps 0", "none",
	 "phi [24, 4 C], bias p|q|a[new, old], alpha [3]"},
	{"triton", "mHC-triton: map=abs order=rows normalize=1, every eps 1e-6",
	 "none: arguments", "as paper"},
	{"triton_static", "its static coefficients: eps=1e-8 q_scale=1", "none: arguments",
	 "bias alone"},
	{"hc", "arXiv 2409.19606: residual=tanh rms_eps=1e-6", "none", "as paper"},
	{"lite", "arXiv 2601.05732: residual=lite rms_eps=1e-6", "none",
	 "phi [32, 4 C]: 24 permutations"},
};

static const struct operand no_operands[] = {LAST};

static int presets_outputs(struct job *job)
{
	(void)job;
	return 0;
}

/* Lines after a title, aligned */
static void print_lines(const char *title, const char *lines)
{
	printf("  %s", title);
	for (const char *c = lines; *c; c++) {
		putchar(*c);
		if (*c == '\n')
			printf("  %*s", (int)strlen(title), "");
	}
	putchar('\n');
}

static int presets_call(hz_context *ctx, struct job *job)
{
	(void)ctx;
	(void)job;
	printf("GGUF keys: ARCH.hyper_connection.{count,sinkhorn_iterations,epsilon}; its dims "
	       "{4 C, 24} are row-major [24, 4 C]\n");
	for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++) {
		const struct model *const m = &models[i];

		printf("\n%s\n", m->preset);
		print_lines("", m->conventions);
		print_lines("tensors: ", m->tensors);
		print_lines("layout: ", m->layout);
	}
	return HZ_OK;
}

const struct op op_mhc_presets = {
	"mhc_presets", "prints models and libraries: preset, conventions, tensors, layout",
	no_operands, (const struct key *const[]){NULL}, presets_outputs, presets_call,
};

/* ---- Sinkhorn -------------------------------------------------------------------------------- */

static const struct operand sinkhorn_operands[] = {
	{"m", NULL, 0, "f32", "[..., n, n]"},
	{"p", NULL, OUTPUT, "f32", "as m, nearly doubly stochastic"},
	LAST,
};

static const struct operand sinkhorn_bwd_operands[] = {
	{"m", NULL, 0, "f32", "[..., n, n]"},
	{"dp", NULL, 0, "f32", "as m, the gradient of p"},
	{"dm", NULL, OUTPUT, "f32", "as m"},
	LAST,
};

static int sinkhorn_outputs(struct job *job)
{
	return mhc_shape_as(job, "p", "m");
}

static int sinkhorn_call(hz_context *ctx, struct job *job)
{
	const hz_mhc_opts o = mhc_opts(job);

	return hz_mhc_sinkhorn(ctx, view_of(job, "m"), view_of(job, "p"), &o);
}

static int sinkhorn_bwd_outputs(struct job *job)
{
	return mhc_shape_as(job, "dm", "m");
}

static int sinkhorn_bwd_call(hz_context *ctx, struct job *job)
{
	const hz_mhc_opts o = mhc_opts(job);

	return hz_mhc_sinkhorn_bwd(ctx, view_of(job, "m"), view_of(job, "dp"), view_of(job, "dm"),
				   &o);
}

static const struct key *const all_sinkhorn_keys[] = {mhc_sinkhorn_keys, NULL};
static const struct key *const no_keys[] = {NULL}, *const nc_keys[] = {streams_keys, NULL};

const struct op op_mhc_sinkhorn = {
	"mhc_sinkhorn", "Sinkhorn and Knopp's iteration on small matrices", sinkhorn_operands,
	all_sinkhorn_keys, sinkhorn_outputs, sinkhorn_call,
};

const struct op op_mhc_sinkhorn_bwd = {
	"mhc_sinkhorn_bwd", "the gradient of mhc_sinkhorn", sinkhorn_bwd_operands, all_sinkhorn_keys,
	sinkhorn_bwd_outputs, sinkhorn_bwd_call,
};

/* ---- Streams mixed --------------------------------------------------------------------------- */


static const struct operand mix_operands[] = {
	{"x", NULL, 0, TYPES, STREAMS},
	{"p", NULL, OPTIONAL, "f32", ROW},
	{"a", NULL, OPTIONAL, "f32", MATRIX},
	{"u", NULL, WANTED, TYPES, BRANCH ", sum of p_i x[i]; needs p"},
	{"r", NULL, WANTED, TYPES, "as x, a x; needs a"},
	LAST,
};

static const struct operand mix_bwd_operands[] = {
	{"x", NULL, 0, TYPES, STREAMS},
	{"p", NULL, OPTIONAL, "f32", ROW},
	{"a", NULL, OPTIONAL, "f32", MATRIX},
	{"du", NULL, OPTIONAL, TYPES, BRANCH ", the gradient of u"},
	{"dr", NULL, OPTIONAL, TYPES, "as x, that of r"},
	{"dx", NULL, WANTED, TYPES, "as x"},
	{"dp", NULL, WANTED, "f32", "as p"},
	{"da", NULL, WANTED, "f32", "as a"},
	LAST,
};

static const struct operand add_operands[] = {
	{"r", NULL, 0, TYPES, STREAMS},
	{"f", NULL, 0, TYPES, BRANCH},
	{"q", NULL, 0, "f32", ROW},
	{"y", NULL, OUTPUT, TYPES, "as r, r[i] + q_i f"},
	LAST,
};

static const struct operand add_bwd_operands[] = {
	{"f", NULL, OPTIONAL, TYPES, BRANCH "; for dq"},
	{"q", NULL, OPTIONAL, "f32", ROW "; for df"},
	{"dy", NULL, 0, TYPES, STREAMS ", the gradient of y"},
	{"dr", NULL, WANTED, TYPES, "as dy"},
	{"df", NULL, WANTED, TYPES, BRANCH},
	{"dq", NULL, WANTED, "f32", "as q"},
	LAST,
};

static const struct operand post_operands[] = {
	{"x", NULL, 0, TYPES, STREAMS},
	{"f", NULL, 0, TYPES, BRANCH},
	{"q", NULL, 0, "f32", ROW},
	{"a", NULL, OPTIONAL, "f32", MATRIX "; absent: the identity"},
	{"branch_bias", NULL, OPTIONAL, "f32", "[C], added to f"},
	{"y", NULL, OUTPUT, TYPES, "as x, a x + q_i (f + branch_bias)"},
	LAST,
};

static const struct operand post_bwd_operands[] = {
	{"x", NULL, OPTIONAL, TYPES, STREAMS "; for da"},
	{"f", NULL, OPTIONAL, TYPES, BRANCH "; for dq"},
	{"q", NULL, OPTIONAL, "f32", ROW "; for df, dbranch_bias"},
	{"a", NULL, OPTIONAL, "f32", MATRIX "; absent: the identity"},
	{"branch_bias", NULL, OPTIONAL, "f32", "[C]"},
	{"dy", NULL, 0, TYPES, STREAMS ", the gradient of y"},
	{"dx", NULL, WANTED, TYPES, "as dy"},
	{"df", NULL, WANTED, TYPES, BRANCH},
	{"dq", NULL, WANTED, "f32", "as q"},
	{"da", NULL, WANTED, "f32", "as a"},
	{"dbranch_bias", NULL, WANTED, "f32", "[C]"},
	LAST,
};

static const struct operand expand_operands[] = {
	{"e", NULL, 0, TYPES, BRANCH},
	{"x", NULL, OUTPUT, TYPES, STREAMS ", e in each"},
	LAST,
};

static const struct operand expand_bwd_operands[] = {
	{"dx", NULL, 0, TYPES, STREAMS},
	{"de", NULL, OUTPUT, TYPES, BRANCH ", their sum"},
	LAST,
};

static int mix_outputs(struct job *job)
{
	const int status = mhc_check_ndim(job, "x", 2);

	if (status)
		return status;
	mhc_shape_branch(job, "u", mhc_array_of(job, "x"));
	return mhc_shape_as(job, "r", "x");
}

static int mix_call(hz_context *ctx, struct job *job)
{
	hz_tensor x, r;

	return hz_mhc_mix(ctx, nc_view(job, "x", &x), view_of(job, "p"), view_of(job, "a"),
			  view_of(job, "u"), nc_view(job, "r", &r));
}

static int mix_bwd_outputs(struct job *job)
{
	static const char *const pairs[][2] = {
		{"dx", "x"}, {"dp", "p"}, {"da", "a"}, {NULL, NULL},
	};

	return mhc_shape_all(job, pairs);
}

static int mix_bwd_call(hz_context *ctx, struct job *job)
{
	hz_tensor as[3];
	const hz_tensor *x = nc_view(job, "x", &as[0]), *p = view_of(job, "p");
	const hz_tensor *a = view_of(job, "a"), *du = view_of(job, "du");
	const hz_tensor *dr = nc_view(job, "dr", &as[1]);
	hz_tensor *dx = nc_view(job, "dx", &as[2]);
	hz_tensor *dp = view_of(job, "dp"), *da = view_of(job, "da");

	return WITH_WORKSPACE(ctx, hz_mhc_mix_bwd(ctx, x, p, a, du, dr, dx, dp, da));
}

static int add_outputs(struct job *job)
{
	return mhc_shape_as(job, "y", "r");
}

static int add_call(hz_context *ctx, struct job *job)
{
	hz_tensor r, y;

	return hz_mhc_add(ctx, nc_view(job, "r", &r), view_of(job, "f"), view_of(job, "q"),
			  nc_view(job, "y", &y));
}

/* A gradient of coefficients: in the shape of `as`, or if that is absent one set per token of dy */
static int shape_coef(struct job *job, const char *name, const char *as, bool is_matrix)
{
	const struct npy *dy = mhc_array_of(job, "dy");
	const int64_t n = mhc_streams_of(job, dy);

	if (mhc_given(job, as))
		return mhc_shape_as(job, name, as);
	mhc_shape(job, name, HZ_F32, dy->ndim - 2, dy->shape, n, is_matrix ? n : -1);
	return 0;
}

static int add_bwd_outputs(struct job *job)
{
	int status = mhc_check_ndim(job, "dy", 2);

	if (status)
		return status;
	mhc_shape_branch(job, "df", mhc_array_of(job, "dy"));
	status = shape_coef(job, "dq", "q", false);
	return status ? status : mhc_shape_as(job, "dr", "dy");
}

static int add_bwd_call(hz_context *ctx, struct job *job)
{
	hz_tensor as[2];
	const hz_tensor *f = view_of(job, "f"), *q = view_of(job, "q");
	const hz_tensor *dy = nc_view(job, "dy", &as[0]);
	hz_tensor *dr = nc_view(job, "dr", &as[1]), *df = view_of(job, "df"), *dq = view_of(job, "dq");

	return WITH_WORKSPACE(ctx, hz_mhc_add_bwd(ctx, f, q, dy, dr, df, dq));
}

static int post_outputs(struct job *job)
{
	return mhc_shape_as(job, "y", "x");
}

static int post_call(hz_context *ctx, struct job *job)
{
	hz_tensor x, y;

	return hz_mhc_post(ctx, nc_view(job, "x", &x), view_of(job, "f"), view_of(job, "q"),
			   view_of(job, "a"), view_of(job, "branch_bias"),
			   nc_view(job, "y", &y));
}

static int post_bwd_outputs(struct job *job)
{
	const struct npy *dy = mhc_array_of(job, "dy");
	int status = mhc_check_ndim(job, "dy", 2);

	if (status)
		return status;
	mhc_shape_branch(job, "df", dy);
	mhc_shape(job, "dbranch_bias", HZ_F32, 0, NULL, mhc_channels_of(job, dy), -1);
	status = shape_coef(job, "dq", "q", false);
	if (!status)
		status = shape_coef(job, "da", "a", true);
	return status ? status : mhc_shape_as(job, "dx", "dy");
}

static int post_bwd_call(hz_context *ctx, struct job *job)
{
	hz_tensor as[3];
	const hz_tensor *x = nc_view(job, "x", &as[0]), *f = view_of(job, "f");
	const hz_tensor *q = view_of(job, "q"), *a = view_of(job, "a");
	const hz_tensor *bias = view_of(job, "branch_bias"), *dy = nc_view(job, "dy", &as[1]);
	hz_tensor *dx = nc_view(job, "dx", &as[2]), *df = view_of(job, "df"), *dq = view_of(job, "dq");
	hz_tensor *da = view_of(job, "da"), *dbias = view_of(job, "dbranch_bias");

	return WITH_WORKSPACE(ctx, hz_mhc_post_bwd(ctx, x, f, q, a, bias, dy, dx, df, dq, da,
						   dbias));
}

static int expand_outputs(struct job *job)
{
	const struct npy *e = mhc_array_of(job, "e");
	const int status = mhc_check_ndim(job, "e", 1);

	if (status)
		return status;
	if (e->ndim == HZ_MAXDIM)
		return complain(EXIT_BAD, "%s: e.ndim is %d, must be less", job->op->name,
				HZ_MAXDIM);
	if (is_cn(job))
		mhc_shape(job, "x", e->dtype, e->ndim, e->shape, value_or(job, "n", 4), -1);
	else
		mhc_shape(job, "x", e->dtype, e->ndim - 1, e->shape, value_or(job, "n", 4),
			  e->shape[e->ndim - 1]);
	return 0;
}

static int expand_call(hz_context *ctx, struct job *job)
{
	hz_tensor x;

	return hz_mhc_expand(ctx, view_of(job, "e"), nc_view(job, "x", &x));
}

static int expand_bwd_outputs(struct job *job)
{
	const int status = mhc_check_ndim(job, "dx", 2);

	if (!status)
		mhc_shape_branch(job, "de", mhc_array_of(job, "dx"));
	return status;
}

static int expand_bwd_call(hz_context *ctx, struct job *job)
{
	hz_tensor dx;

	return hz_mhc_expand_bwd(ctx, nc_view(job, "dx", &dx), view_of(job, "de"));
}

const struct op op_mhc_mix = {
	"mhc_mix", "streams mixed: u = sum of p_i x[i], r = a x", mix_operands, nc_keys,
	mix_outputs, mix_call,
};

const struct op op_mhc_mix_bwd = {
	"mhc_mix_bwd", "gradients of mhc_mix: those whose files are given",
	mix_bwd_operands, nc_keys, mix_bwd_outputs, mix_bwd_call,
};

const struct op op_mhc_add = {
	"mhc_add", "what a branch gave, added to streams", add_operands, nc_keys,
	add_outputs, add_call,
};

const struct op op_mhc_add_bwd = {
	"mhc_add_bwd", "gradients of mhc_add: those whose files are given",
	add_bwd_operands, nc_keys, add_bwd_outputs, add_bwd_call,
};

const struct op op_mhc_post = {
	"mhc_post", "streams mixed, and what a branch gave added", post_operands, nc_keys,
	post_outputs, post_call,
};

const struct op op_mhc_post_bwd = {
	"mhc_post_bwd", "gradients of mhc_post: those whose files are given",
	post_bwd_operands, nc_keys, post_bwd_outputs, post_bwd_call,
};

const struct op op_mhc_expand = {
	"mhc_expand", "n streams of one", expand_operands,
	(const struct key *const[]){expand_keys, NULL}, expand_outputs, expand_call,
};

const struct op op_mhc_expand_bwd = {
	"mhc_expand_bwd", "the gradient of mhc_expand", expand_bwd_operands, nc_keys,
	expand_bwd_outputs, expand_bwd_call,
};

/* ---- Chains of layers, diagnostics, initial weights ------------------------------------------ */

static const struct operand recompute_operands[] = {
	{"x", NULL, 0, TYPES, STREAMS ", before the first of L layers"},
	{"p", NULL, OPTIONAL, "f32", "[L, ..., n]; for u"},
	{"q", NULL, 0, "f32", "[L, ..., n]"},
	{"a", NULL, OPTIONAL, "f32", "[L, ..., n, n]; absent: the identity"},
	{"f", NULL, 0, TYPES, "[L, ..., C], what branches gave"},
	{"branch_bias", NULL, OPTIONAL, "f32", "[L, C], added to f"},
	{"u", NULL, WANTED, TYPES, "[L, ..., C], branch inputs"},
	{"y", NULL, WANTED, TYPES, "[L, ..., n, C], streams after each layer"},
	LAST,
};

static const struct operand diagnose_operands[] = {
	{"a", NULL, 0, "f32", "[n, n], [S, n, n] or [L, S, n, n]"},
	{"out", NULL, OUTPUT, "f32", "[S, 4]: deviations of sums, gains"},
	LAST,
};

static const struct operand init_operands[] = {
	{"phi", NULL, WANTED, "f32", "[m, n C]"},
	{"alpha", NULL, OUTPUT, "f32", "[3]; head=1: [1]"},
	{"bias", NULL, OUTPUT, "f32", "[m]"},
	LAST,
};

#define LAYERS 64

static int recompute_outputs(struct job *job)
{
	static const char *const of_layers[] = {"f", "p", "q", "a", "branch_bias"};
	const struct npy *x = mhc_array_of(job, "x"), *f = mhc_array_of(job, "f");
	int64_t leading[HZ_MAXDIM];
	int status = mhc_check_ndim(job, "x", 2);

	for (int i = 0; i < 5 && !status; i++) {
		const struct npy *a = mhc_array_of(job, of_layers[i]);

		status = mhc_check_ndim(job, of_layers[i], 2);
		if (!status && mhc_given(job, of_layers[i]) && a->shape[0] != f->shape[0])
			status = complain(EXIT_BAD, "%s: %s.shape[0] is %lld, must be %lld, as f",
					  job->op->name, of_layers[i], (long long)a->shape[0],
					  (long long)f->shape[0]);
	}
	if (status)
		return status;
	if (x->ndim == HZ_MAXDIM)
		return complain(EXIT_BAD, "%s: x.ndim is %d, must be 2 to %d", job->op->name,
				x->ndim, HZ_MAXDIM - 1);
	if (f->shape[0] < 1 || f->shape[0] > LAYERS)
		return complain(EXIT_BAD, "%s: f.shape[0] is %lld, must be 1 to %d layers",
				job->op->name, (long long)f->shape[0], LAYERS);
	leading[0] = f->shape[0];
	memcpy(leading + 1, x->shape, (size_t)(x->ndim - 2) * sizeof(*leading));
	mhc_shape(job, "u", x->dtype, x->ndim - 1, leading, x->shape[x->ndim - 1], -1);
	mhc_shape(job, "y", x->dtype, x->ndim - 1, leading, x->shape[x->ndim - 2],
		  x->shape[x->ndim - 1]);
	return 0;
}

/* Layer l of an array whose first dimension is layers; a view without data if absent */
static hz_tensor layer_of(struct job *job, const char *name, int64_t l)
{
	const hz_tensor *t = view_of(job, name);
	const int64_t bytes = t ? (int64_t)hz_dtype_size(t->dtype) : 0;

	if (!t)
		return (hz_tensor){0};
	return hz_tensor_nd((char *)t->data + l * t->stride[0] * bytes, t->dtype, t->device,
			    t->ndim - 1, t->shape + 1);
}

static int recompute_call(hz_context *ctx, struct job *job)
{
	const int layers = (int)view_of(job, "f")->shape[0];
	hz_mhc_block block[LAYERS];

	for (int l = 0; l < layers; l++)
		block[l] = (hz_mhc_block){
			.p = layer_of(job, "p", l), .q = layer_of(job, "q", l),
			.a = layer_of(job, "a", l), .f = layer_of(job, "f", l),
			.branch_bias = layer_of(job, "branch_bias", l), .u = layer_of(job, "u", l),
			.y = layer_of(job, "y", l),
		};
	return hz_mhc_recompute(ctx, view_of(job, "x"), layers, block);
}

static int diagnose_outputs(struct job *job)
{
	const struct npy *a = mhc_array_of(job, "a");
	const int status = mhc_check_ndim(job, "a", 2);

	if (!status)
		mhc_shape(job, "out", HZ_F32, 0, NULL, a->ndim > 2 ? a->shape[a->ndim - 3] : 1, 4);
	return status;
}

static int diagnose_call(hz_context *ctx, struct job *job)
{
	return hz_mhc_diagnose(ctx, view_of(job, "a"), view_of(job, "out"));
}

static int init_outputs(struct job *job)
{
	const int64_t n = value_or(job, "n", 4);
	const bool head = value_or(job, "head", 0);
	const hz_mhc_opts o = mhc_opts(job);
	const int rows = head ? (int)n : hz_mhc_rows((int)n, &o);

	if (rows < 0)
		return complain(EXIT_BAD, "%s: n=%lld: there are no permutations of so many",
				job->op->name, (long long)n);
	if (mhc_given(job, "phi") && !value_of(job, "channels")->given)
		return complain(EXIT_BAD, "%s: channels= is missing", job->op->name);
	mhc_shape(job, "phi", HZ_F32, 0, NULL, rows, n * value_or(job, "channels", 0));
	mhc_shape(job, "alpha", HZ_F32, 0, NULL, head ? 1 : 3, -1);
	mhc_shape(job, "bias", HZ_F32, 0, NULL, rows, -1);
	return 0;
}

static int init_call(hz_context *ctx, struct job *job)
{
	const hz_mhc_opts o = mhc_opts(job);

	return hz_mhc_init(ctx, (int)value_or(job, "kind", HZ_MHC_INIT_IDENTITY),
			   (int)value_or(job, "layer", 0), (uint64_t)value_or(job, "seed", 0),
			   view_of(job, "phi"), view_of(job, "alpha"), view_of(job, "bias"), &o);
}

const struct op op_mhc_recompute = {
	"mhc_recompute", "branch inputs and streams of a chain of layers", recompute_operands,
	no_keys, recompute_outputs, recompute_call,
};

const struct op op_mhc_diagnose = {
	"mhc_diagnose", "how far matrices are from doubly stochastic, and their gains",
	diagnose_operands, no_keys, diagnose_outputs, diagnose_call,
};

const struct op op_mhc_init = {
	"mhc_init", "initial weights", init_operands,
	(const struct key *const[]){init_keys, mhc_sinkhorn_keys, mhc_weights_keys, NULL},
	init_outputs, init_call,
};
