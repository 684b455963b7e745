/*
 * json.c - text as JSON
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "tools/core/tool.h"

void put_json_string(FILE *out, const char *s)
{
	fputc('"', out);
	for (; *s; s++) {
		const unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\')
			fprintf(out, "\\%c", c);
		else if (c < 0x20)
			fprintf(out, "\\u%04x", c);
		else
			fputc(c, out);
	}
	fputc('"', out);
}
