/*
 * sums_math.h - sums over rows and their results in quaternion layers, shared by C and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_SUMS_H
#define HZI_QUAT_SUMS_H

#include "lib/quat_layer/step_math.h"

/*
 * Adds the contribution of one row to the values of a channel; saved: its mean and lower triangle.
 */
HZI_QUAT_INLINE void hzi_quat_sum_one(int kind, struct hzi_quat a, struct hzi_quat b,
				      const hzi_quat_real *saved, hzi_quat_real *sum)
{
	hzi_quat_real z[4];
	int at = 0, in = 4;

	if (kind == HZI_QUAT_SUM_PLAIN) {
		for (int c = 0; c < 4; c++)
			sum[c] += a.c[c];
		return;
	}
	for (int c = 0; c < 4; c++)
		a.c[c] -= saved[c];
	if (kind == HZI_QUAT_SUM_SQUARES) {
		for (int r = 0; r < 4; r++) {
			for (int c = r; c < 4; c++)
				sum[at++] += a.c[r] * a.c[c];
		}
		return;
	}
	for (int r = 0; r < 4; r++) {
		z[r] = 0;
		for (int c = 0; c <= r; c++)
			z[r] += saved[in++] * a.c[c];
	}
	for (int c = 0; c < 4; c++)
		sum[c] += b.c[c];
	for (int r = 0; r < 4; r++) {
		for (int c = 0; c < 4; c++)
			sum[4 + 4 * r + c] += b.c[r] * z[c];
	}
}

#define HZI_QUAT_SAVED 14	/* per channel: the mean; the lower triangle of m, row-major */

/* The symmetric or triangular matrix of ten numbers: upper triangle, row-major, mirrored */
HZI_QUAT_INLINE void hzi_quat_symmetric(const double *ten, double *m)
{
	int at = 0;

	for (int r = 0; r < 4; r++) {
		for (int c = r; c < 4; c++)
			m[4 * r + c] = m[4 * c + r] = ten[at++];
	}
}

HZI_QUAT_INLINE double hzi_quat_param(int dtype, const void *p, int64_t i)
{
	return dtype == HZ_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

HZI_QUAT_INLINE void hzi_quat_set_param(int dtype, void *p, int64_t i, double v)
{
	if (dtype == HZ_F64)
		((double *)p)[i] = v;
	else
		((float *)p)[i] = (float)v;
}

/* gamma of a channel as a matrix */
HZI_QUAT_INLINE void hzi_quat_gamma(const struct hzi_quat_finish_step *f, int64_t channel,
				    double *m)
{
	double ten[10];

	for (int i = 0; i < 10; i++) {
		ten[i] = i == 0 || i == 4 || i == 7 || i == 9;
		if (f->gamma && f->whiten)
			ten[i] = hzi_quat_param(f->dtype, f->gamma, 10 * channel + i);
		else if (f->gamma)
			ten[i] *= hzi_quat_param(f->dtype, f->gamma, channel);
	}
	hzi_quat_symmetric(ten, m);
}

/*
 * L^-1 of the Cholesky decomposition L L^T = v + eps, as a full matrix with zeros. v has no
 * negative eigenvalue, so no pivot is below eps, and below a pivot of eps the column is 0; in a v
 * that was rounded it may not be.
 */
HZI_QUAT_INLINE void hzi_quat_whiten(const double *v, double eps, double *m)
{
	double l[16];
	bool flat[4];

	for (int r = 0; r < 4; r++) {
		for (int c = 0; c <= r; c++) {
			double s = v[4 * r + c] + (r == c ? eps : 0);

			for (int k = 0; k < c; k++)
				s -= l[4 * r + k] * l[4 * c + k];
			if (r == c) {
				flat[c] = s < eps;
				l[5 * c] = sqrt(flat[c] ? eps : s);
			} else {
				l[4 * r + c] = flat[c] ? 0 : s / l[5 * c];
			}
		}
	}
	for (int c = 0; c < 4; c++) {
		for (int r = 0; r < 4; r++) {
			double s = r == c;

			for (int k = c; k < r; k++)
				s -= l[4 * r + k] * m[4 * k + c];
			m[4 * r + c] = r < c ? 0 : s / l[5 * r];
		}
	}
}

/* From sums to mean and matrix of a channel, running values, and the coefficients of the map */
HZI_QUAT_INLINE void hzi_quat_finish_norm(const struct hzi_quat_finish_step *f, int64_t channel,
					  const double *sum)
{
	struct hzi_quat_affine *to = (struct hzi_quat_affine *)f->coef + channel;
	double v[16], ten[10], m[16], gamma[16], mean[4], var = 0;
	const double keep = 1 - f->momentum;
	int at = 4;

	for (int c = 0; c < 4; c++)
		mean[c] = f->eval ? hzi_quat_param(f->dtype, f->running_mean, 4 * channel +
						   f->order[c])
				  : hzi_quat_param(f->dtype, f->saved, HZI_QUAT_SAVED * channel +
						   c);
	if (f->eval) {
		for (int i = 0; i < 10; i++)
			ten[i] = f->whiten ? hzi_quat_param(f->dtype, f->running_var, 10 * channel +
							    i)
					   : 0;
		var = f->whiten ? 0 : hzi_quat_param(f->dtype, f->running_var, channel);
	} else {
		for (int i = 0; i < 10; i++)
			ten[i] = sum[i] / (double)f->rows;
		var = ten[0] + ten[4] + ten[7] + ten[9];
		for (int i = 0; f->running_var && i < (f->whiten ? 10 : 1); i++) {
			const int64_t j = (f->whiten ? 10 : 1) * channel + i;

			hzi_quat_set_param(f->dtype, f->running_var, j,
					   keep * hzi_quat_param(f->dtype, f->running_var, j) +
					 f->momentum * (f->whiten ? ten[i] : var));
		}
		for (int c = 0; f->running_mean && c < 4; c++) {
			const int64_t j = 4 * channel + f->order[c];

			hzi_quat_set_param(f->dtype, f->running_mean, j,
					   keep * hzi_quat_param(f->dtype, f->running_mean, j) +
					 f->momentum * mean[c]);
		}
	}
	if (f->whiten) {
		hzi_quat_symmetric(ten, v);
		hzi_quat_whiten(v, f->eps, m);
	} else {
		for (int i = 0; i < 16; i++)
			m[i] = i % 5 ? 0 : 1 / sqrt(var + f->eps);
	}
	for (int c = 0; c < 4; c++) {
		hzi_quat_set_param(f->dtype, f->saved, HZI_QUAT_SAVED * channel + c, mean[c]);
		to->mean[c] = (hzi_quat_real)mean[c];
		to->shift[c] = (hzi_quat_real)(f->beta ? hzi_quat_param(f->dtype, f->beta,
									4 * channel + f->order[c])
						   : 0);
	}
	for (int r = 0; r < 4; r++) {
		for (int c = 0; c <= r; c++)
			hzi_quat_set_param(f->dtype, f->saved, HZI_QUAT_SAVED * channel + at++,
					   m[4 * r + c]);
	}
	hzi_quat_gamma(f, channel, gamma);
	for (int r = 0; r < 4; r++) {
		for (int c = 0; c < 4; c++) {
			double s = 0;

			for (int k = 0; k < 4; k++)
				s += gamma[4 * r + k] * m[4 * k + c];
			to->m[4 * r + c] = (hzi_quat_real)s;
		}
	}
}

/*
 * With dz = gamma dy and T = the sum of dz z^T, the gradient of the covariance is that of the
 * Cholesky decomposition: dx = m^T (dz - the mean of dz - H z / rows), H = T mirrored at its
 * diagonal from below; without whitening H = trace(T).
 */
HZI_QUAT_INLINE void hzi_quat_finish_norm_bwd(const struct hzi_quat_finish_step *f, int64_t channel,
					      const double *sum)
{
	struct hzi_quat_affine_bwd *to;
	double m[16], gamma[16], h[16], a[16], trace = 0;
	int at = 4;

	for (int r = 0; r < 4; r++) {
		for (int c = 0; c < 4; c++)
			m[4 * r + c] = c > r ? 0 : hzi_quat_param(f->dtype, f->saved,
								  HZI_QUAT_SAVED * channel + at++);
	}
	hzi_quat_gamma(f, channel, gamma);
	at = 0;
	for (int r = 0; f->dgamma && r < 4; r++) {
		for (int c = r; c < 4; c++) {
			const double d = sum[4 + 4 * r + c] +
					 (c > r ? sum[4 + 4 * c + r] : 0);
			const int64_t j = f->whiten ? 10 * channel + at++ : channel;

			if (!f->whiten && c > r)
				continue;
			hzi_quat_set_param(f->dtype, f->dgamma, j,
					   d + (f->accumulate || (!f->whiten && r > 0) ?
					      hzi_quat_param(f->dtype, f->dgamma, j) : 0));
		}
	}
	for (int c = 0; f->dbeta && c < 4; c++) {
		const int64_t j = 4 * channel + f->order[c];

		hzi_quat_set_param(f->dtype, f->dbeta, j,
				   sum[c] + (f->accumulate ? hzi_quat_param(f->dtype, f->dbeta, j) :
					     0));
	}
	if (!f->coef)
		return;
	to = (struct hzi_quat_affine_bwd *)f->coef + channel;
	/* h = T, then H */
	for (int r = 0; r < 4; r++) {
		for (int c = 0; c < 4; c++) {
			h[4 * r + c] = 0;
			for (int k = 0; k < 4; k++)
				h[4 * r + c] += gamma[4 * r + k] * sum[4 + 4 * k + c];
		}
		trace += h[5 * r];
	}
	for (int r = 0; r < 4; r++) {
		for (int c = r; c < 4; c++) {
			if (!f->whiten)
				h[4 * r + c] = h[4 * c + r] = r == c ? trace : 0;
			else
				h[4 * r + c] = h[4 * c + r];
		}
	}
	/* m^T gamma; a = h m */
	for (int r = 0; r < 4; r++) {
		for (int c = 0; c < 4; c++) {
			double s = 0;

			a[4 * r + c] = 0;
			for (int k = 0; k < 4; k++) {
				s += m[4 * k + r] * gamma[4 * k + c];
				a[4 * r + c] += h[4 * r + k] * m[4 * k + c];
			}
			to->m[4 * r + c] = (hzi_quat_real)s;
		}
	}
	for (int r = 0; r < 4; r++) {
		double shift = 0;

		for (int c = 0; c < 4; c++) {
			double s = 0;

			for (int k = 0; k < 4; k++)
				s += m[4 * k + r] * a[4 * k + c];
			to->n[4 * r + c] = (hzi_quat_real)(f->eval ? 0 : -s / (double)f->rows);
			for (int k = 0; k < 4; k++)
				shift += m[4 * k + r] * gamma[4 * k + c] * sum[c];
		}
		to->shift[r] = (hzi_quat_real)(f->eval ? 0 : -shift / (double)f->rows);
		to->mean[r] = (hzi_quat_real)hzi_quat_param(f->dtype, f->saved, HZI_QUAT_SAVED *
							    channel + r);
	}
}

/* From sums of x - p and (x - p) (x - p)^T to the mean and to the sums of hzi_quat_finish_norm() */
HZI_QUAT_INLINE void hzi_quat_finish_moments(const struct hzi_quat_finish_step *f, int64_t channel,
					     double *sum)
{
	double d[4];
	int at = 0;

	for (int c = 0; c < 4; c++) {
		const int64_t j = HZI_QUAT_SAVED * channel + c;

		d[c] = sum[c] / (double)f->rows;
		hzi_quat_set_param(f->dtype, f->saved, j, hzi_quat_param(f->dtype, f->saved, j) +
				   d[c]);
	}
	for (int r = 0; r < 4; r++) {
		for (int c = r; c < 4; c++, at++)
			sum[at] = sum[4 + at] - (double)f->rows * d[r] * d[c];
	}
	hzi_quat_finish_norm(f, channel, sum);
}

/* Values of one channel that a kind needs */
HZI_QUAT_INLINE int hzi_quat_finish_values(int kind)
{
	return kind == HZI_QUAT_FINISH_NORM ? 10 : kind == HZI_QUAT_FINISH_MOMENTS ? 14 :
	       kind == HZI_QUAT_FINISH_NORM_BWD ? 20 : 4;
}

/* Computes the results from the sums of a channel. */
HZI_QUAT_INLINE void hzi_quat_finish_one(const struct hzi_quat_finish_step *f, int64_t channel,
					 double *sum)
{
	struct hzi_quat q;

	switch (f->kind) {
	case HZI_QUAT_FINISH_BIAS:
		if (f->accumulate) {
			q = hzi_quat_load(&f->out, channel * f->out.stride[0]);
			for (int c = 0; c < 4; c++)
				sum[c] += (double)q.c[c];
		}
		for (int c = 0; c < 4; c++)
			q.c[c] = (hzi_quat_real)sum[c];
		hzi_quat_store(&f->out, channel * f->out.stride[0], q, 0);
		break;
	case HZI_QUAT_FINISH_MEAN:
		for (int c = 0; c < 4; c++)
			hzi_quat_set_param(f->dtype, f->saved, HZI_QUAT_SAVED * channel + c,
					   sum[c] / (double)f->rows);
		break;
	case HZI_QUAT_FINISH_NORM:
		hzi_quat_finish_norm(f, channel, sum);
		break;
	case HZI_QUAT_FINISH_MOMENTS:
		hzi_quat_finish_moments(f, channel, sum);
		break;
	default:
		hzi_quat_finish_norm_bwd(f, channel, sum);
	}
}

#endif
