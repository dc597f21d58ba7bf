#include "tests/lib/nvrtc.h"

#include "gpu/nvrtc.h"
#include "tests/lib/test.h"

#include <string.h>

/* One later than 9.0 that there is not: no time goes into machine code. */
enum { NO_CARD = 91 };

static struct nvrtc nvrtc;

void need_nvrtc(void)
{
    struct error e;

    if (nvrtc.CompileProgram != NULL) return;
    if (test_lacks("nvrtc") || nvrtc_open(&(struct nvrtc_places){NULL, NULL}, &nvrtc, &e) != STATUS_OK)
        test_skip("it needs NVRTC: package cuda-nvrtc-13-0, see README.md");
}

char *nvrtc_ptx(const char *text)
{
    struct nvrtc_code code;
    struct error e;

    need_nvrtc();
    if (nvrtc_compile(&nvrtc, &(struct nvrtc_wish){.text = text, .architecture = NO_CARD}, &code, &e) != STATUS_OK)
        test_fail(__FILE__, __LINE__, "%s\n%s", e.text, text);
    CHECK(code.cubin == NULL);
    char *ptx = strdup(code.ptx);
    CHECK(ptx != NULL);
    nvrtc_code_fini(&code);
    return ptx;
}
