#include "gpu/half.h"
#include "tests/cusim/ptxi.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum type { T_B, T_U, T_S, T_F, T_PRED };
enum op { MOV, LDP, LDG, STG, CVTA, ADD, SUB, MUL, MULW, MULHI, MAD, FMA, DIV, REM, SQRT, RSQRT, RCP, NEG, ABS, MIN, MAX, AND, OR, XOR, NOT, SHL, SHR, SETP, SELP, BRA, RET, CVT, EX2, LG2, NOP };
enum { MAXA = 8, BF16 = 17 /* bits of type bf16, to tell it from f16 */ };
struct arg { char kind; int reg; uint64_t imm; int64_t off; };   /* r register, i immediate, s special, p parameter address, l label */
struct insn { enum op op; enum type t, t2; int bits, bits2, pred, neg, na, nv, line, unpack; char cmp[4]; int approx, ftz, rz; struct arg a[MAXA]; };
struct ptxi { struct insn *i; int n, nreg; char (*reg)[16]; };
struct ld { struct ptxi *p; char (*lab)[40]; int *labat; int nlab; char *err; size_t errn; char param[80]; };

static int reg(struct ptxi *p, const char *s, size_t n)
{
    for (int i = 0; i < p->nreg; i++)
        if (strlen(p->reg[i]) == n && !memcmp(p->reg[i], s, n))
            return i;
    p->reg = realloc(p->reg, (size_t)(p->nreg + 1) * sizeof *p->reg);
    snprintf(p->reg[p->nreg], 16, "%.*s", (int)n, s);
    return p->nreg++;
}
static int bad(struct ld *l, int line, const char *what, const char *s)
{
    snprintf(l->err, l->errn, "line %d: %s: %.60s", line, what, s);
    return -1;
}
static const char *special[] = {"%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", NULL};
static int label(struct ld *l, const char *s, size_t n)
{
    for (int i = 0; i < l->nlab; i++)
        if (strlen(l->lab[i]) == n && !memcmp(l->lab[i], s, n))
            return i;
    l->lab = realloc(l->lab, (size_t)(l->nlab + 1) * sizeof *l->lab);
    l->labat = realloc(l->labat, (size_t)(l->nlab + 1) * sizeof *l->labat);
    snprintf(l->lab[l->nlab], 40, "%.*s", (int)n, s);
    l->labat[l->nlab] = -1;
    return l->nlab++;
}
static int operand(struct ld *l, int line, const char *s, size_t n, struct arg *a)
{
    while (n && isspace((unsigned char)*s)) s++, n--;
    while (n && isspace((unsigned char)s[n - 1])) n--;
    if (!n)
        return bad(l, line, "empty operand", s);
    if (*s == '[') {
        const char *plus = memchr(s, '+', n);
        size_t k = (plus ? (size_t)(plus - s) : n - 1) - 1;
        if (operand(l, line, s + 1, k, a))
            return -1;
        a->off = plus ? strtoll(plus + 1, NULL, 10) : 0;
        return 0;
    }
    if (*s == '%') {
        for (int i = 0; special[i]; i++)
            if (strlen(special[i]) == n && !memcmp(special[i], s, n)) {
                *a = (struct arg){.kind = 's', .reg = i};
                return 0;
            }
        *a = (struct arg){.kind = 'r', .reg = reg(l->p, s, n)};
        return 0;
    }
    if (*s == '$') {
        *a = (struct arg){.kind = 'l', .reg = label(l, s, n)};
        return 0;
    }
    if (n > 2 && s[0] == '0' && (s[1] == 'f' || s[1] == 'F' || s[1] == 'd')) {
        *a = (struct arg){.kind = 'i', .imm = strtoull(s + 2, NULL, 16)};
        return 0;
    }
    if (isdigit((unsigned char)*s) || *s == '-') {
        *a = (struct arg){.kind = 'i', .imm = *s == '-' ? (uint64_t)strtoll(s, NULL, 0) : strtoull(s, NULL, 0)};
        return 0;
    }
    if (!strncmp(s, l->param, strlen(l->param))) {
        *a = (struct arg){.kind = 'p'};
        return 0;
    }
    return bad(l, line, "operand", s);
}
static int type(const char *s, enum type *t, int *bits)
{
    if (!strcmp(s, "pred")) {
        *t = T_PRED;
        *bits = 1;
        return 0;
    }
    if (!strcmp(s, "bf16")) {
        *t = T_F;
        *bits = BF16;
        return 0;
    }
    const char *k = strchr("busf", *s);
    if (!*s || !k || !isdigit((unsigned char)s[1]))
        return -1;
    *t = *s == 'b' ? T_B : *s == 'u' ? T_U : *s == 's' ? T_S : T_F;
    *bits = atoi(s + 1);
    return 0;
}
static int opcode(struct ld *l, int line, char *s, struct insn *q)
{
    static const struct { const char *n; enum op o; } tab[] = {{"mov", MOV}, {"ld", LDG}, {"st", STG}, {"cvta", CVTA}, {"add", ADD}, {"sub", SUB}, {"mul", MUL}, {"mad", MAD}, {"fma", FMA}, {"div", DIV}, {"rem", REM}, {"sqrt", SQRT}, {"rsqrt", RSQRT}, {"rcp", RCP}, {"neg", NEG}, {"abs", ABS}, {"min", MIN}, {"max", MAX}, {"and", AND}, {"or", OR}, {"xor", XOR}, {"not", NOT}, {"shl", SHL}, {"shr", SHR}, {"setp", SETP}, {"selp", SELP}, {"bra", BRA}, {"ret", RET}, {"cvt", CVT}, {"ex2", EX2}, {"lg2", LG2}};
    char full[64];
    snprintf(full, sizeof full, "%s", s);
    char *save, *w = strtok_r(s, ".", &save);
    size_t i;
    for (i = 0; i < sizeof tab / sizeof *tab && strcmp(tab[i].n, w); i++)
        ;
    if (i == sizeof tab / sizeof *tab)
        return bad(l, line, "unknown instruction", full);
    q->op = tab[i].o;
    q->nv = 1;
    int nt = 0;
    while ((w = strtok_r(NULL, ".", &save))) {
        enum type t;
        int b;
        if (!type(w, &t, &b)) {
            if (!nt++)
                q->t = t, q->bits = b;
            else
                q->t2 = t, q->bits2 = b;
        } else if (!strcmp(w, "param") && q->op == LDG) {
            q->op = LDP;
        } else if (!strcmp(w, "wide")) {
            q->op = MULW;
        } else if (!strcmp(w, "hi")) {
            q->op = MULHI;
        } else if (!strcmp(w, "v2") || !strcmp(w, "v4")) {
            q->nv = w[1] - '0';
        } else if (!strcmp(w, "approx")) {
            q->approx = 1;
        } else if (!strcmp(w, "ftz")) {
            q->ftz = 1;
        } else if (!strcmp(w, "rz") || !strcmp(w, "rzi")) {
            q->rz = 1;
        } else if (q->op == SETP && strlen(w) < 4) {
            strcpy(q->cmp, w);
        } else if (strcmp(w, "global") && strcmp(w, "to") && strcmp(w, "rn") && strcmp(w, "rni") && strcmp(w, "lo") && strcmp(w, "uni") && strcmp(w, "nc") && strcmp(w, "cs") && strcmp(w, "L1") && strcmp(w, "no_allocate")) {
            return bad(l, line, "unknown suffix", full);
        }
    }
    if (q->op == SQRT && q->approx)
        return bad(l, line, "not exact", full);
    return 0;
}

struct ptxi *ptxi_load(const char *ptx, const char *entry, char *err, size_t errn)
{
    struct ld l = {.p = calloc(1, sizeof(struct ptxi)), .err = err, .errn = errn};
    struct ptxi *p = l.p;
    char key[96], *text = strdup(ptx), *s = text, *save;
    int line = 0, in = 0, fail = 0;
    snprintf(key, sizeof key, ".entry %s(", entry);
    snprintf(l.param, sizeof l.param, "%s_param_0", entry);
    *err = 0;
    for (char *ln; !fail && (ln = strsep(&s, "\n"));) {
        line++;
        char *c = strstr(ln, "//");
        if (c)
            *c = 0;
        while (isspace((unsigned char)*ln))
            ln++;
        if (!in) {
            in = strstr(ln, key) != NULL;
            continue;
        }
        if (in == 1) {
            in += *ln == '{';
            continue;
        }
        if (*ln == '}')
            break;
        while (*ln == '{' || isspace((unsigned char)*ln))   /* inline assembly comes as "{ instruction;}" */
            ln++;
        if (!*ln || *ln == '.')
            continue;
        if (*ln == '$') {
            size_t n = strcspn(ln, ":");
            if (ln[n] == ':') {
                int k = label(&l, ln, n);
                l.labat[k] = p->n;
                continue;
            }
        }
        p->i = realloc(p->i, (size_t)(p->n + 1) * sizeof *p->i);
        struct insn *q = &p->i[p->n++];
        memset(q, 0, sizeof *q);
        q->pred = -1;
        q->line = line;
        char *semi = strchr(ln, ';');
        if (semi)
            *semi = 0;
        if (*ln == '@') {
            q->neg = ln[1] == '!';
            ln += 1 + q->neg;
            size_t n = strcspn(ln, " \t");
            q->pred = reg(p, ln, n);
            ln += n;
            while (isspace((unsigned char)*ln))
                ln++;
        }
        char *o = strtok_r(ln, " \t", &save);
        char *rest = save;
        if (opcode(&l, line, o, q)) {
            fail = 1;
            break;
        }
        /* operands; a {..} group is spread out */
        while (rest && isspace((unsigned char)*rest))
            rest++;
        q->unpack = rest && *rest == '{';
        for (char *a = rest; a && *a && !fail;) {
            while (isspace((unsigned char)*a) || *a == '{' || *a == '}' || *a == ',')
                a++;
            if (!*a)
                break;
            size_t n = strcspn(a, ",}");
            if (q->na == MAXA)
                fail = bad(&l, line, "too many operands", a);
            else if (operand(&l, line, a, n, &q->a[q->na++]))
                fail = 1;
            a += n;
        }
    }
    if (!fail && in < 2)
        fail = bad(&l, 0, "no such entry", entry);
    for (int i = 0; i < p->n && !fail; i++)
        for (int k = 0; k < p->i[i].na; k++)
            if (p->i[i].a[k].kind == 'l')
                p->i[i].a[k].imm = (uint64_t)l.labat[p->i[i].a[k].reg];
    free(l.lab);
    free(l.labat);
    free(text);
    if (!fail)
        return p;
    ptxi_free(p);
    return NULL;
}
void ptxi_free(struct ptxi *p)
{
    if (!p)
        return;
    free(p->i);
    free(p->reg);
    free(p);
}

static float f32(uint64_t u) { uint32_t x = (uint32_t)u; float f; memcpy(&f, &x, 4); return f; }
static uint64_t uf32(float f) { uint32_t x; memcpy(&x, &f, 4); return x; }
static float f16(uint64_t u) { return half_widen_f16((uint16_t)u); }
static double f64(uint64_t u) { double d; memcpy(&d, &u, 8); return d; }
static uint64_t uf64(double d) { uint64_t u; memcpy(&u, &d, 8); return u; }
static uint64_t trunc_to(uint64_t v, int bits) { return bits >= 64 ? v : v & ((1ull << bits) - 1); }
static int64_t sext(uint64_t v, int bits) { return bits >= 64 ? (int64_t)v : (int64_t)(v << (64 - bits)) >> (64 - bits); }
static int compare(const struct insn *q, uint64_t a, uint64_t b)
{
    const char *c = q->cmp;
    int lt, eq, un = 0;
    if (q->t == T_F) {
        double x = q->bits == 32 ? f32(a) : f64(a), y = q->bits == 32 ? f32(b) : f64(b);
        un = isnan(x) || isnan(y);
        lt = x < y;
        eq = x == y;
        if (!strcmp(c, "nan"))
            return un;
        if (!strcmp(c, "num"))
            return !un;
        if (un)
            return strlen(c) == 3;   /* ltu, leu, gtu, geu, equ, neu */
    } else if (q->t == T_S) {
        lt = sext(a, q->bits) < sext(b, q->bits);
        eq = trunc_to(a, q->bits) == trunc_to(b, q->bits);
    } else {
        lt = trunc_to(a, q->bits) < trunc_to(b, q->bits);
        eq = trunc_to(a, q->bits) == trunc_to(b, q->bits);
    }
    switch (c[0] << 8 | c[1]) {
    case 'l' << 8 | 't': case 'l' << 8 | 'o': return lt;
    case 'l' << 8 | 'e': case 'l' << 8 | 's': return lt || eq;
    case 'g' << 8 | 't': case 'h' << 8 | 'i': return !lt && !eq;
    case 'g' << 8 | 'e': case 'h' << 8 | 's': return !lt;
    case 'e' << 8 | 'q': return eq;
    default: return !eq;
    }
}

int ptxi_run(struct ptxi *p, const void *params, const unsigned grid[3], const unsigned block[3], const struct ptxi_range *r, int nr, struct ptxi_count *cnt, char *err, size_t errn)
{
    uint64_t *R = calloc((size_t)p->nreg, sizeof *R);
    unsigned sp[12];
    int rc = 0;
    for (int i = 0; i < 3; i++)
        sp[3 + i] = block[i], sp[9 + i] = grid[i];
    uint64_t nb = (uint64_t)grid[0] * grid[1] * grid[2], nt = (uint64_t)block[0] * block[1] * block[2];
    for (uint64_t g = 0; g < nb * nt && !rc; g++) {
        uint64_t b = g / nt, t = g % nt, steps = 0;
        sp[0] = (unsigned)(t % block[0]), sp[1] = (unsigned)(t / block[0] % block[1]), sp[2] = (unsigned)(t / block[0] / block[1]);
        sp[6] = (unsigned)(b % grid[0]), sp[7] = (unsigned)(b / grid[0] % grid[1]), sp[8] = (unsigned)(b / grid[0] / grid[1]);
        memset(R, 0x5a, (size_t)p->nreg * sizeof *R);
        for (int pc = 0; pc < p->n;) {
            const struct insn *q = &p->i[pc++];
            if (++steps > 100000000) {
                snprintf(err, errn, "does not end");
                rc = -1;
                break;
            }
            cnt->insns++;
            if (q->pred >= 0 && (R[q->pred] & 1) == (uint64_t)q->neg)
                continue;
            uint64_t v[MAXA];
            for (int i = 0; i < q->na; i++) {
                const struct arg *a = &q->a[i];
                v[i] = a->kind == 'r' ? R[a->reg] : a->kind == 's' ? sp[a->reg] : a->kind == 'p' ? (uint64_t)(uintptr_t)params : a->imm;
            }
            uint64_t x = v[1], y = v[2], z = 0;
            int f = q->t == T_F, w = q->bits;
            float fx = f32(x), fy = f32(y);
            switch (q->op) {
            case MOV:
                if (q->na > 2) {   /* pack {lo,hi} or unpack */
                    int half = w / (q->na - 1);
                    if (q->unpack) {
                        for (int i = 0; i < q->na - 1; i++)
                            R[q->a[i].reg] = trunc_to(v[q->na - 1] >> i * half, half);
                        continue;
                    }
                    for (int i = q->na - 1; i >= 1; i--)
                        z = z << half | trunc_to(v[i], half);
                } else {
                    z = x;
                }
                break;
            case LDP: case LDG: case STG: {
                int ad = q->op == STG ? 0 : q->nv, sz = w / 8;
                uint64_t at = v[ad] + (uint64_t)q->a[ad].off;
                if (q->op != LDP) {
                    int ok = 0;
                    for (int i = 0; i < nr; i++)
                        ok |= at >= (uintptr_t)r[i].p && at + (uint64_t)(sz * q->nv) <= (uintptr_t)r[i].p + r[i].n;
                    if (!ok || at % (uint64_t)(sz * q->nv)) {
                        snprintf(err, errn, "line %d: %s access of %d bytes at %#llx by thread %u of block %u", q->line, ok ? "misaligned" : "stray", sz * q->nv, (unsigned long long)at, sp[0], sp[6]);
                        rc = -1;
                        break;
                    }
                    *(q->op == STG ? &cnt->st : &cnt->ld) += (uint64_t)(sz * q->nv);
                }
                for (int i = 0; i < q->nv; i++) {
                    void *m = (void *)(uintptr_t)(at + (uint64_t)(i * sz));
                    if (q->op == STG) {
                        memcpy(m, &v[1 + i], (size_t)sz);
                    } else {
                        uint64_t u = 0;
                        memcpy(&u, m, (size_t)sz);
                        if (q->a[i].kind == 'r')
                            R[q->a[i].reg] = q->t == T_S ? (uint64_t)sext(u, w) : u;
                    }
                }
                if (rc)
                    break;
                continue;
            }
            case CVTA: z = x; break;
            case ADD: z = f ? w == 32 ? uf32(fx + fy) : uf64(f64(x) + f64(y)) : x + y; break;
            case SUB: z = f ? w == 32 ? uf32(fx - fy) : uf64(f64(x) - f64(y)) : x - y; break;
            case MUL: z = f ? w == 32 ? uf32(fx * fy) : uf64(f64(x) * f64(y)) : x * y; break;
            case MULW: z = q->t == T_S ? (uint64_t)(sext(x, w) * sext(y, w)) : trunc_to(x, w) * trunc_to(y, w); w *= 2; break;
            case MULHI: z = q->t == T_S ? (uint64_t)((__int128)sext(x, w) * sext(y, w) >> w) : (uint64_t)((unsigned __int128)trunc_to(x, w) * trunc_to(y, w) >> w); break;
            case MAD: z = x * y + v[3]; break;
            case FMA: z = w == 32 ? uf32(fmaf(fx, fy, f32(v[3]))) : uf64(fma(f64(x), f64(y), f64(v[3]))); break;
            case DIV: z = f ? w == 32 ? uf32(fx / fy) : uf64(f64(x) / f64(y)) : !trunc_to(y, w) ? ~0ull : q->t == T_S ? (uint64_t)(sext(x, w) / sext(y, w)) : trunc_to(x, w) / trunc_to(y, w); break;
            case REM: z = !trunc_to(y, w) ? x : q->t == T_S ? (uint64_t)(sext(x, w) % sext(y, w)) : trunc_to(x, w) % trunc_to(y, w); break;
            case SQRT: z = w == 32 ? uf32(sqrtf(fx)) : uf64(sqrt(f64(x))); break;
            case RSQRT: z = uf32(1.0f / sqrtf(fx)); break;
            case RCP: z = uf32(1.0f / fx); break;
            case NEG: z = f ? x ^ 1ull << (w - 1) : (uint64_t)-(int64_t)x; break;
            case ABS: z = f ? x & ~(1ull << (w - 1)) : (uint64_t)llabs(sext(x, w)); break;
            case MIN: z = f ? uf32(fminf(fx, fy)) : q->t == T_S ? (sext(x, w) < sext(y, w) ? x : y) : trunc_to(x, w) < trunc_to(y, w) ? x : y; break;
            case MAX: z = f ? uf32(fmaxf(fx, fy)) : q->t == T_S ? (sext(x, w) > sext(y, w) ? x : y) : trunc_to(x, w) > trunc_to(y, w) ? x : y; break;
            case AND: z = x & y; break;
            case OR: z = x | y; break;
            case XOR: z = x ^ y; break;
            case NOT: z = q->t == T_PRED ? !x : ~x; break;
            case SHL: z = y >= (uint64_t)w ? 0 : x << y; break;
            case SHR: z = q->t == T_S ? (uint64_t)(sext(x, w) >> (y >= (uint64_t)w ? w - 1 : (int)y)) : y >= (uint64_t)w ? 0 : trunc_to(x, w) >> y; break;
            case SETP: z = (uint64_t)compare(q, x, y); w = 1; break;
            case SELP: z = v[3] & 1 ? x : y; break;
            case BRA: pc = (int)v[0]; continue;
            case RET: pc = p->n; continue;
            case CVT: {   /* t,bits = destination; t2,bits2 = source */
                double d = q->t2 == T_F ? q->bits2 == 32 ? (double)fx : q->bits2 == 16 ? (double)f16(x) : q->bits2 == BF16 ? (double)f32(x << 16) : f64(x) : q->t2 == T_S ? (double)sext(x, q->bits2) : (double)trunc_to(x, q->bits2);
                if (q->t == T_F)
                    z = w == 32 ? q->t2 == T_F ? uf32((float)d) : uf32(q->t2 == T_S ? (float)sext(x, q->bits2) : (float)trunc_to(x, q->bits2)) : uf64(d);
                else if (q->t2 == T_F)
                    z = (uint64_t)(int64_t)(q->rz ? trunc(d) : nearbyint(d));
                else
                    z = q->t2 == T_S ? (uint64_t)sext(x, q->bits2) : trunc_to(x, q->bits2);
                break;
            }
            case EX2: z = uf32(exp2f(fx)); break;
            case LG2: z = uf32(log2f(fx)); break;
            case NOP: continue;
            }
            if (rc)
                break;
            R[q->a[0].reg] = trunc_to(z, w);
        }
    }
    free(R);
    return rc;
}
