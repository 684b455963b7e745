/*
 * mhc_checkpoint.c - the hyper-connections of a DeepSeek V4 checkpoint, used as they are stored
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A safetensors file is mapped, and the tensors hc_attn_fn [24, 4 C], hc_attn_base [24] and
 * hc_attn_scale [3], likewise of hc_ffn and hc_head, are phi, bias and alpha in place. Prefill is
 * all tokens of a prompt in one call for each sublayer, decoding is one token; both give the same.
 * Without an argument the program writes a small file of its own first.
 */
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <hurwitz.h>

#define LAYERS 2
#define STREAMS 4
#define CHANNELS 64	/* of the file that this program writes */
#define TOKENS 16

static hz_context *ctx;

static void try(int status)
{
	if (status == HZ_OK)
		return;
	fprintf(stderr, "mhc_checkpoint: %s\n", hz_errmsg(ctx));
	exit(1);
}

static void fail(const char *what, const char *name)
{
	fprintf(stderr, "mhc_checkpoint: %s: %s\n", name, what);
	exit(1);
}

/* ---- A safetensors file: 8 bytes of length, a header in JSON, data --------------------------- */

static void write_file(const char *path)
{
	static const char *const part[] = {"attn", "ffn"};
	char header[4096] = "{";
	long long at = 0;
	uint64_t length;
	uint32_t random = 1;
	FILE *f = fopen(path, "wb");

	if (!f)
		fail("cannot be written", path);
	for (int i = 0; i <= 2 * LAYERS; i++) {
		const int rows = i < 2 * LAYERS ? 24 : STREAMS;
		const int shape[3][2] = {
			{rows, STREAMS * CHANNELS}, {rows, 0}, {rows == 24 ? 3 : 1, 0},
		};
		static const char *const kind[] = {"fn", "base", "scale"};

		for (int k = 0; k < 3; k++) {
			const long long end = at + 4LL * shape[k][0] * (k ? 1 : shape[k][1]);
			char name[64], size[32];

			if (rows == 24)
				snprintf(name, sizeof(name), "layers.%d.hc_%s_%s", i / 2,
					 part[i % 2], kind[k]);
			else
				snprintf(name, sizeof(name), "hc_head_%s", kind[k]);
			snprintf(size, sizeof(size), "%d", shape[k][0]);
			if (k == 0)
				snprintf(size, sizeof(size), "%d,%d", shape[k][0], shape[k][1]);
			snprintf(header + strlen(header), sizeof(header) - strlen(header),
				 "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],"
				 "\"data_offsets\":[%lld,%lld]}",
				 at ? "," : "", name, size, at, end);
			at = end;
		}
	}
	strcat(header, "}");
	while (strlen(header) % 8)
		strcat(header, " ");
	length = strlen(header);
	fwrite(&length, 8, 1, f);
	fwrite(header, 1, length, f);
	for (long long i = 0; i < at / 4; i++) {
		const float v = (float)(int32_t)random * 0x1p-33f;

		fwrite(&v, 4, 1, f);
		random = random * 1664525u + 1013904223u;
	}
	if (fclose(f))
		fail("cannot be written", path);
}

struct file {
	char *data;
	uint64_t header;	/* bytes */
	int64_t bytes;
};

static struct file map_file(const char *path)
{
	const int fd = open(path, O_RDONLY);
	struct file f = {.bytes = 0};
	struct stat s;

	if (fd < 0 || fstat(fd, &s))
		fail("cannot be read", path);
	f.bytes = s.st_size;
	f.data = mmap(NULL, (size_t)f.bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (f.bytes < 16 || f.data == MAP_FAILED)
		fail("cannot be mapped", path);
	memcpy(&f.header, f.data, 8);
	if (f.header > (uint64_t)f.bytes - 8)
		fail("is no safetensors file", path);
	return f;
}

/* A view of an F32 tensor of one or two dimensions, in place */
static hz_tensor tensor_of(const struct file *f, const char *name)
{
	char *json = malloc(f->header + 1), key[96], *at, *shape, *offsets;
	long long begin = 0, end = 0, size[2] = {0, 0};
	int ndim;
	hz_tensor t;

	if (!json)
		fail("no memory", name);
	memcpy(json, f->data + 8, f->header);
	json[f->header] = 0;
	snprintf(key, sizeof(key), "\"%s\":{", name);
	at = strstr(json, key);
	if (!at || !strstr(at, "\"F32\"") || !(shape = strstr(at, "\"shape\":[")) ||
	    !(offsets = strstr(at, "\"data_offsets\":[")))
		fail("is not in the file, or not F32", name);
	ndim = sscanf(shape, "\"shape\":[%lld,%lld", &size[0], &size[1]);
	if (ndim < 1 || sscanf(offsets, "\"data_offsets\":[%lld,%lld", &begin, &end) != 2 ||
	    begin < 0 || end > f->bytes - 8 - (long long)f->header ||
	    end - begin != 4 * size[0] * (ndim == 2 ? size[1] : 1))
		fail("is not of one or two dimensions in the file", name);
	t = hz_tensor_nd(f->data + 8 + f->header + begin, HZ_F32, HZ_CPU, ndim,
			 (const int64_t[]){size[0], size[1]});
	free(json);
	return t;
}

/* ---- The network ----------------------------------------------------------------------------- */

struct weights {
	hz_tensor phi, bias, alpha;
};

static struct weights weights_of(const struct file *f, const char *prefix)
{
	char fn[64], base[64], scale[64];

	snprintf(fn, sizeof(fn), "%s_fn", prefix);
	snprintf(base, sizeof(base), "%s_base", prefix);
	snprintf(scale, sizeof(scale), "%s_scale", prefix);
	return (struct weights){tensor_of(f, fn), tensor_of(f, base), tensor_of(f, scale)};
}

/* out [tokens][C] from embeddings: attention and the experts are tanh here, token by token. */
static void forward(const struct weights *w, int64_t tokens, int64_t C, const float *e, float *out)
{
	float *memory = calloc((size_t)(tokens * (STREAMS * C + C + STREAMS * (STREAMS + 2))), 4);
	float *x = memory, *u = x + tokens * STREAMS * C, *p = u + tokens * C;
	float *q = p + tokens * STREAMS, *a = q + tokens * STREAMS;
	hz_tensor E = hz_tensor_2d((float *)(uintptr_t)e, HZ_F32, HZ_CPU, tokens, C);
	hz_tensor X = hz_tensor_3d(x, HZ_F32, HZ_CPU, tokens, STREAMS, C);
	hz_tensor U = hz_tensor_2d(u, HZ_F32, HZ_CPU, tokens, C);
	hz_tensor P = hz_tensor_2d(p, HZ_F32, HZ_CPU, tokens, STREAMS);
	hz_tensor Q = hz_tensor_2d(q, HZ_F32, HZ_CPU, tokens, STREAMS);
	hz_tensor A = hz_tensor_3d(a, HZ_F32, HZ_CPU, tokens, STREAMS, STREAMS);
	hz_tensor H = hz_tensor_2d(out, HZ_F32, HZ_CPU, tokens, C);
	const struct weights *head = w + 2 * LAYERS;

	if (!memory)
		fail("no memory", "streams");
	try(hz_mhc_expand(ctx, &E, &X));
	for (; w < head; w++) {
		try(hz_mhc_pre(ctx, &X, &w->phi, &w->alpha, &w->bias, &P, &Q, &A, &U, NULL));
		for (int64_t i = 0; i < tokens * C; i++)
			u[i] = tanhf(u[i]);
		try(hz_mhc_post(ctx, &X, &U, &Q, &A, NULL, &X));
	}
	try(hz_mhc_head(ctx, &X, &head->phi, &head->alpha, &head->bias, NULL, &H, NULL));
	free(memory);
}

int main(int argc, char **argv)
{
	const char *const path = argc > 1 ? argv[1] : "mhc_checkpoint.safetensors";
	static const char *const part[] = {"attn", "ffn"};
	const hz_options options = {.device = HZ_CPU};
	struct weights w[2 * LAYERS + 1];
	float *e, *all, *one, most = 0;
	struct file f;
	int64_t C;

	if (argc < 2)
		write_file(path);
	if (hz_open(&ctx, &options) != HZ_OK)
		fail(hz_open_errmsg(), "hz_open");
	f = map_file(path);
	for (int i = 0; i < 2 * LAYERS; i++) {
		char prefix[48];

		snprintf(prefix, sizeof(prefix), "layers.%d.hc_%s", i / 2, part[i % 2]);
		w[i] = weights_of(&f, prefix);
	}
	w[2 * LAYERS] = weights_of(&f, "hc_head");
	C = w[0].phi.shape[1] / STREAMS;
	e = malloc((size_t)(3 * TOKENS * C) * sizeof(*e));
	if (!e)
		fail("no memory", "embeddings");
	all = e + TOKENS * C;
	one = all + TOKENS * C;
	for (int64_t i = 0; i < TOKENS * C; i++)
		e[i] = sinf((float)(i + 1));
	forward(w, TOKENS, C, e, all);
	for (int t = 0; t < TOKENS; t++)
		forward(w, 1, C, e + t * C, one + t * C);
	for (int64_t i = 0; i < TOKENS * C; i++)
		most = fmaxf(most, fabsf(all[i] - one[i]));
	printf("prefill of %d tokens, then decoding: they differ by %g\n", TOKENS, (double)most);
	hz_close(ctx);
	munmap(f.data, (size_t)f.bytes);
	free(e);
	if (argc < 2)
		remove(path);
	return most <= 1e-6f ? 0 : 1;
}
