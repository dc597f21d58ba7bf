#include "web/page.h"

/* The assembler brings the files in as they are; paths start at the root, like includes. The makefile knows that this
 * file depends on them. */
#define EMBED(name, path)                                                                            \
    __asm__(".pushsection .rodata\n" #name ":\n.incbin \"" path "\"\n" #name "_end:\n.popsection\n"); \
    extern const char name[] __attribute__((visibility("hidden")));                                  \
    extern const char name##_end[] __attribute__((visibility("hidden")));

EMBED(page_file_html, "web/ui/index.html")
EMBED(page_file_css, "web/ui/page.css")
EMBED(page_file_js, "web/ui/page.js")
EMBED(network_file_html, "web/ui/network.html")
EMBED(network_file_css, "web/ui/network.css")
EMBED(network_file_js, "web/ui/network.js")

static struct bytes between(const char *from, const char *to) { return bytes_of(from, (size_t)(to - from)); }

struct bytes page_html(void) { return between(page_file_html, page_file_html_end); }
struct bytes page_css(void) { return between(page_file_css, page_file_css_end); }
struct bytes page_js(void) { return between(page_file_js, page_file_js_end); }
struct bytes page_network_html(void) { return between(network_file_html, network_file_html_end); }
struct bytes page_network_css(void) { return between(network_file_css, network_file_css_end); }
struct bytes page_network_js(void) { return between(network_file_js, network_file_js_end); }
