/* The updater language as text: what is refused, with which words and where; what is accepted, and what it means. */
#include "gpu/expr.h"

#include "gpu/program.h"
#include "service/base/mem.h"
#include "tests/lib/test.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct error error;

/* ---- mistakes ---------------------------------------------------------------------------------------------------- */

static const struct {
    const char *text, *says;
} mistakes[] = {
    {"", "line 1, column 1: the program is empty; 'stored = grad' is one\n  \n  ^"},
    {"# nothing but a comment\n\n",
     "line 1, column 1: the program is empty; 'stored = grad' is one\n"
     "  # nothing but a comment\n"
     "  ^"},
    {"param lr = 0.1", "line 1, column 7: the param 'lr' is never used\n  param lr = 0.1\n        ^"},
    {"stored", "line 1, column 7: expected '=', found the end of the text\n  stored\n        ^"},
    {"stored =", "line 1, column 9: expected a value, found the end of the text\n  stored =\n          ^"},
    {"stored grad", "line 1, column 8: expected '=', found 'grad'\n  stored grad\n         ^"},
    {"stored == grad", "line 1, column 8: '==' compares; to assign, write '='\n  stored == grad\n         ^"},
    {"stored + grad", "line 1, column 8: expected '=', found '+'\n  stored + grad\n         ^"},
    {"= grad", "line 1, column 1: expected a statement, such as 'stored -= 0.1 * grad', found '='\n  = grad\n  ^"},
    {"3 = grad",
     "line 1, column 1: expected a statement, such as 'stored -= 0.1 * grad', found '3'\n"
     "  3 = grad\n"
     "  ^"},
    {"(stored) = grad",
     "line 1, column 1: expected a statement, such as 'stored -= 0.1 * grad', found '('\n"
     "  (stored) = grad\n"
     "  ^"},
    {"stored = grad)",
     "line 1, column 14: expected an operator or the end of the statement, found ')'\n"
     "  stored = grad)\n"
     "               ^"},
    {"stored = (grad",
     "line 1, column 15: expected ')' for the '(' of line 1, found the end of the text\n"
     "  stored = (grad\n"
     "                ^"},
    {"stored = (grad\nm = 2", "line 2, column 1: expected ')' for the '(' of line 1, found 'm'\n  m = 2\n  ^"},
    {"stored = min(grad, 1",
     "line 1, column 21: expected ')' for the '(' of line 1, found the end of the text\n"
     "  stored = min(grad, 1\n"
     "                      ^"},
    {"stored = grad grad",
     "line 1, column 15: expected an operator or the end of the statement, found 'grad'\n"
     "  stored = grad grad\n"
     "                ^"},
    {"stored = 2grad",
     "line 1, column 11: a number runs into a name; to multiply, write '*' between them\n"
     "  stored = 2grad\n"
     "            ^"},
    {"stored = 2 grad",
     "line 1, column 12: expected an operator or the end of the statement, found 'grad'\n"
     "  stored = 2 grad\n"
     "             ^"},
    {"stored = ()", "line 1, column 11: expected a value, found ')'\n  stored = ()\n            ^"},
    {"stored = + grad", "line 1, column 10: expected a value, found '+'\n  stored = + grad\n           ^"},
    {"stored = grad +",
     "line 1, column 16: expected a value, found the end of the text\n"
     "  stored = grad +\n"
     "                 ^"},
    {"stored = grad * * 2",
     "line 1, column 17: expected a value, found '*'\n"
     "  stored = grad * * 2\n"
     "                  ^"},
    {"stored = grad ** 2",
     "line 1, column 15: '**' is no sign of the language; a power is written with ^\n"
     "  stored = grad ** 2\n"
     "                ^"},
    {"stored = grad // 2",
     "line 1, column 15: '//' is no sign of the language; a comment begins with #, and division is one /\n"
     "  stored = grad // 2\n"
     "                ^"},
    {"stored = grad % 2",
     "line 1, column 15: '%' is no sign of the language; there is no remainder\n"
     "  stored = grad % 2\n"
     "                ^"},
    {"stored = grad @ 2",
     "line 1, column 15: '@' is no sign of the language\n"
     "  stored = grad @ 2\n"
     "                ^"},
    {"stored++", "line 1, column 7: '++' is no sign of the language; write x += 1\n  stored++\n        ^"},
    {"stored = !grad",
     "line 1, column 10: '!' is no sign of the language; 'not' of a comparison is the opposite one\n"
     "  stored = !grad\n"
     "           ^"},
    {"stored = grad > 0 && grad < 1",
     "line 1, column 19: '&&' is no sign of the language; 'and' of two comparisons is min(a, b)\n"
     "  stored = grad > 0 && grad < 1\n"
     "                    ^"},
    {"stored = grad > 0 || grad < 1",
     "line 1, column 19: '||' is no sign of the language; 'or' of two comparisons is max(a, b)\n"
     "  stored = grad > 0 || grad < 1\n"
     "                    ^"},
    {"stored = grad > 0 & grad < 1",
     "line 1, column 19: '&' is no sign of the language; 'and' of two comparisons is min(a, b)\n"
     "  stored = grad > 0 & grad < 1\n"
     "                    ^"},
    {"stored = grad > 0 | grad < 1",
     "line 1, column 19: '|' is no sign of the language; 'or' of two comparisons is max(a, b)\n"
     "  stored = grad > 0 | grad < 1\n"
     "                    ^"},
    {"stored = grad =< 1",
     "line 1, column 15: '=<' is no sign of the language; it is written <=\n"
     "  stored = grad =< 1\n"
     "                ^"},
    {"stored = grad => 1",
     "line 1, column 15: '=>' is no sign of the language; it is written >=\n"
     "  stored = grad => 1\n"
     "                ^"},
    {"stored = grad <> 1",
     "line 1, column 15: '<>' is no sign of the language; it is written !=\n"
     "  stored = grad <> 1\n"
     "                ^"},
    {"stored = grad > 0 ? 1 : 0",
     "line 1, column 19: '?' is no sign of the language; where(c, a, b) chooses\n"
     "  stored = grad > 0 ? 1 : 0\n"
     "                    ^"},
    {"stored = grad : 1",
     "line 1, column 15: ':' is no sign of the language; there are no types and no blocks\n"
     "  stored = grad : 1\n"
     "                ^"},
    {"stored ^= 2",
     "line 1, column 8: '^=' is no sign of the language; write x = x ^ y\n"
     "  stored ^= 2\n"
     "         ^"},
    {"stored = grad[0]",
     "line 1, column 14: '[' is no sign of the language; there are no arrays to index; a statement holds for each element\n"
     "  stored = grad[0]\n"
     "               ^"},
    {"stored = {grad}",
     "line 1, column 10: '{' is no sign of the language; there are no blocks; where(c, a, b) chooses\n"
     "  stored = {grad}\n"
     "           ^"},
    {"stored = 'a'",
     "line 1, column 10: ''' is no sign of the language; there are no texts\n"
     "  stored = 'a'\n"
     "           ^"},
    {"stored = \"a\"",
     "line 1, column 10: '\"' is no sign of the language; there are no texts\n"
     "  stored = \"a\"\n"
     "           ^"},
    {"stored.x = 1",
     "line 1, column 7: '.' is no sign of the language; a number has a digit before or after its point\n"
     "  stored.x = 1\n"
     "        ^"},
    {"stored = grad \\\n + 1",
     "line 1, column 15: '\\' is no sign of the language; a line goes on after an operator, a comma, or within parentheses\n"
     "  stored = grad \\\n"
     "                ^"},
    {"stored -> 1",
     "line 1, column 8: '->' is no sign of the language; there are no members\n"
     "  stored -> 1\n"
     "         ^"},
    {"stored = 0 < grad < 1",
     "line 1, column 19: comparisons do not chain; for both write min(a < b, b < c)\n"
     "  stored = 0 < grad < 1\n"
     "                    ^"},
    {"stored = grad == 1 == 1",
     "line 1, column 20: comparisons do not chain; for both write min(a < b, b < c)\n"
     "  stored = grad == 1 == 1\n"
     "                     ^"},
    {"stored = gard",
     "line 1, column 10: there is no name 'gard' here; did you mean 'grad'?\n"
     "  stored = gard\n"
     "           ^"},
    {"stored += learning_rate * grad",
     "line 1, column 11: there is no name 'learning_rate' here; a value is given before it is used\n"
     "  stored += learning_rate * grad\n"
     "            ^"},
    {"stored = Grad",
     "line 1, column 10: there is no name 'Grad' here; did you mean 'grad'?\n"
     "  stored = Grad\n"
     "           ^"},
    {"storde = grad",
     "line 1, column 1: 'storde' is assigned to but never used; did you mean 'stored'?\n"
     "  storde = grad\n"
     "  ^"},
    {"param rate = 1\nstored -= rte * grad",
     "line 2, column 11: there is no name 'rte' here; did you mean 'rate'?\n"
     "  stored -= rte * grad\n"
     "            ^"},
    {"stored = if(grad, 1, 2)",
     "line 1, column 10: there is no 'if' in the language; where(c, a, b) chooses, min and max are 'and' and 'or'\n"
     "  stored = if(grad, 1, 2)\n"
     "           ^"},
    {"stored = grad and 1",
     "line 1, column 15: there is no 'and' in the language; where(c, a, b) chooses, min and max are 'and' and 'or'\n"
     "  stored = grad and 1\n"
     "                ^"},
    {"for i",
     "line 1, column 1: there is no 'for' in the language; where(c, a, b) chooses, min and max are 'and' and 'or'\n"
     "  for i\n"
     "  ^"},
    {"return grad",
     "line 1, column 1: there is no 'return' in the language; where(c, a, b) chooses, min and max are 'and' and 'or'\n"
     "  return grad\n"
     "  ^"},
    {"stored = sqrl(grad)",
     "line 1, column 10: there is no function 'sqrl' here; did you mean 'sqrt'?\n"
     "  stored = sqrl(grad)\n"
     "           ^"},
    {"stored = sine(grad)",
     "line 1, column 10: there is no function 'sine'; there are min max abs sqrt exp log tanh sign clamp where, and ^ for powers\n"
     "  stored = sine(grad)\n"
     "           ^"},
    {"stored = pow(grad, 2)",
     "line 1, column 10: there is no function 'pow'; there are min max abs sqrt exp log tanh sign clamp where, and ^ for powers\n"
     "  stored = pow(grad, 2)\n"
     "           ^"},
    {"stored = sqrt", "line 1, column 10: 'sqrt' is a function: write sqrt(x)\n  stored = sqrt\n           ^"},
    {"stored = sqrt grad",
     "line 1, column 10: 'sqrt' is a function: write sqrt(x)\n"
     "  stored = sqrt grad\n"
     "           ^"},
    {"stored = grad(1)",
     "line 1, column 10: 'grad' is a value, no function; to multiply, write '*'\n"
     "  stored = grad(1)\n"
     "           ^"},
    {"stored = 2(grad)",
     "line 1, column 11: expected an operator or the end of the statement, found '('\n"
     "  stored = 2(grad)\n"
     "            ^"},
    {"stored = sqrt()",
     "line 1, column 15: too few arguments: it is sqrt(x)\n"
     "  stored = sqrt()\n"
     "                ^"},
    {"stored = min(grad)",
     "line 1, column 18: too few arguments: it is min(a, b)\n"
     "  stored = min(grad)\n"
     "                   ^"},
    {"stored = where(grad, 1)",
     "line 1, column 23: too few arguments: it is where(condition, a, b)\n"
     "  stored = where(grad, 1)\n"
     "                        ^"},
    {"stored = sqrt(grad, 1)",
     "line 1, column 19: too many arguments: it is sqrt(x)\n"
     "  stored = sqrt(grad, 1)\n"
     "                    ^"},
    {"stored = clamp(grad, -1, 1, 2)",
     "line 1, column 27: too many arguments: it is clamp(x, least, most)\n"
     "  stored = clamp(grad, -1, 1, 2)\n"
     "                            ^"},
    {"stored = min(grad 1)",
     "line 1, column 19: expected ',' and the next argument, found '1'\n"
     "  stored = min(grad 1)\n"
     "                    ^"},
    {"stored = min(grad; 1)",
     "line 1, column 18: expected ',' and the next argument, found ';'\n"
     "  stored = min(grad; 1)\n"
     "                   ^"},
    {"grad = 0",
     "line 1, column 1: 'grad' cannot be assigned to; give the result a name of its own, such as g\n"
     "  grad = 0\n"
     "  ^"},
    {"grad -= 1",
     "line 1, column 1: 'grad' cannot be assigned to; give the result a name of its own, such as g\n"
     "  grad -= 1\n"
     "  ^"},
    {"param lr = 1\nlr = 2",
     "line 2, column 1: the param 'lr' cannot be assigned to; it is changed from outside\n"
     "  lr = 2\n"
     "  ^"},
    {"step = 1", "line 1, column 1: 'step' is a name of the language and cannot be assigned to\n  step = 1\n  ^"},
    {"pi = 3", "line 1, column 1: 'pi' is a name of the language and cannot be assigned to\n  pi = 3\n  ^"},
    {"sqrt = 1", "line 1, column 1: 'sqrt' is a function and cannot be assigned to\n  sqrt = 1\n  ^"},
    {"x = x + 1",
     "line 1, column 5: there is no name 'x' here; a value is given before it is used\n"
     "  x = x + 1\n"
     "      ^"},
    {"x += 1", "line 1, column 1: there is no name 'x' here; a value is given before it is used\n  x += 1\n  ^"},
    {"stored = x; x = 1",
     "line 1, column 10: there is no name 'x' here; a value is given before it is used\n"
     "  stored = x; x = 1\n"
     "           ^"},
    {"param", "line 1, column 6: expected the name of a param, found the end of the text\n  param\n       ^"},
    {"param lr",
     "line 1, column 9: expected '=' and the value that the param has when none is given, found the end of the text\n"
     "  param lr\n"
     "          ^"},
    {"param lr 0.1",
     "line 1, column 10: expected '=' and the value that the param has when none is given, found '0.1'\n"
     "  param lr 0.1\n"
     "           ^"},
    {"param lr = x", "line 1, column 12: expected a number, found 'x'\n  param lr = x\n             ^"},
    {"param lr = ",
     "line 1, column 12: expected a number, found the end of the text\n"
     "  param lr = \n"
     "             ^"},
    {"param lr = -",
     "line 1, column 13: expected a number, found the end of the text\n"
     "  param lr = -\n"
     "              ^"},
    {"param lr = 1 2",
     "line 1, column 14: expected an operator or the end of the statement, found '2'\n"
     "  param lr = 1 2\n"
     "               ^"},
    {"param lr = 1,",
     "line 1, column 14: expected the name of a param, found the end of the text\n"
     "  param lr = 1,\n"
     "               ^"},
    {"param lr = 1; param lr = 2",
     "line 1, column 21: there is a param 'lr' already\n"
     "  param lr = 1; param lr = 2\n"
     "                      ^"},
    {"slot lr = 0; param lr = 1",
     "line 1, column 20: there is a slot 'lr' already\n"
     "  slot lr = 0; param lr = 1\n"
     "                     ^"},
    {"param grad = 1", "line 1, column 7: 'grad' is a name of the language\n  param grad = 1\n        ^"},
    {"param e = 1", "line 1, column 7: 'e' is a name of the language\n  param e = 1\n        ^"},
    {"param sqrt = 1", "line 1, column 7: 'sqrt' is a function of the language\n  param sqrt = 1\n        ^"},
    {"param slot = 1", "line 1, column 7: 'slot' begins a statement of its own\n  param slot = 1\n        ^"},
    {"param 1 = 2", "line 1, column 7: expected the name of a param, found '1'\n  param 1 = 2\n        ^"},
    {"x = grad; param x = 1; stored = x",
     "line 1, column 17: 'x' has been assigned to above; declare it before that\n"
     "  x = grad; param x = 1; stored = x\n"
     "                  ^"},
    {"param lr = 0.1; stored = grad",
     "line 1, column 7: the param 'lr' is never used\n"
     "  param lr = 0.1; stored = grad\n"
     "        ^"},
    {"slot", "line 1, column 5: expected the name of a slot, found the end of the text\n  slot\n      ^"},
    {"slot m",
     "line 1, column 7: expected '= 0' or '= stored', what the slot starts as, found the end of the text\n"
     "  slot m\n"
     "        ^"},
    {"slot m = 1",
     "line 1, column 10: expected 0 or stored, what the slot starts as, found '1'\n"
     "  slot m = 1\n"
     "           ^"},
    {"slot m = grad",
     "line 1, column 10: expected 0 or stored, what the slot starts as, found 'grad'\n"
     "  slot m = grad\n"
     "           ^"},
    {"slot m = 0, m = 0", "line 1, column 13: there is a slot 'm' already\n  slot m = 0, m = 0\n              ^"},
    {"slot stored = 0", "line 1, column 6: 'stored' is a name of the language\n  slot stored = 0\n       ^"},
    {"slot m += 0",
     "line 1, column 8: expected '= 0' or '= stored', what the slot starts as, found '+='\n"
     "  slot m += 0\n"
     "         ^"},
    {"slot m = 0; stored = m",
     "line 1, column 6: the slot 'm' is never assigned to, so it would stay what it starts as\n"
     "  slot m = 0; stored = m\n"
     "       ^"},
    {"stored = slot", "line 1, column 10: 'slot' begins a statement of its own\n  stored = slot\n           ^"},
    {"stored = param + 1",
     "line 1, column 10: 'param' begins a statement of its own\n"
     "  stored = param + 1\n"
     "           ^"},
    {"stored = grad; x = 1",
     "line 1, column 16: 'x' is assigned to but never used\n"
     "  stored = grad; x = 1\n"
     "                 ^"},
    {"stored = grad; stroed = 1",
     "line 1, column 16: 'stroed' is assigned to but never used; did you mean 'stored'?\n"
     "  stored = grad; stroed = 1\n"
     "                 ^"},
    {"x = grad", "line 1, column 1: 'x' is assigned to but never used\n  x = grad\n  ^"},
    {"slot m = 0; m = grad",
     "line 1, column 21: nothing is assigned to 'stored', so the value would never change\n"
     "  slot m = 0; m = grad\n"
     "                      ^"},
    {"stored = 1.2.3", "line 1, column 13: a number has one point\n  stored = 1.2.3\n              ^"},
    {"stored = 1..2", "line 1, column 12: a number has one point\n  stored = 1..2\n             ^"},
    {"stored = 1e", "line 1, column 12: the exponent of this number has no digits\n  stored = 1e\n             ^"},
    {"stored = 1e+",
     "line 1, column 13: the exponent of this number has no digits\n"
     "  stored = 1e+\n"
     "              ^"},
    {"stored = .",
     "line 1, column 10: '.' is no sign of the language; a number has a digit before or after its point\n"
     "  stored = .\n"
     "           ^"},
    {"stored = grad * .e5",
     "line 1, column 17: '.' is no sign of the language; a number has a digit before or after its point\n"
     "  stored = grad * .e5\n"
     "                  ^"},
    {"stored = 1e999",
     "line 1, column 10: this number is too large; the largest is 1.7976931348623157e308\n"
     "  stored = 1e999\n"
     "           ^"},
    {"stored = 1e-999",
     "line 1, column 10: this number is too small to be told from zero; write 0\n"
     "  stored = 1e-999\n"
     "           ^"},
    {"stored = 0x10",
     "line 1, column 11: a number runs into a name; to multiply, write '*' between them\n"
     "  stored = 0x10\n"
     "            ^"},
    {"stored = 1_000",
     "line 1, column 11: a number runs into a name; to multiply, write '*' between them\n"
     "  stored = 1_000\n"
     "            ^"},
    {"stored = 1,5",
     "line 1, column 11: expected an operator or the end of the statement, found ','\n"
     "  stored = 1,5\n"
     "            ^"},
    {"stored = 12345678901234567890123456789012345678901.0",
     "line 1, column 10: a number of 43 characters; at most 40\n"
     "  stored = 12345678901234567890123456789012345678901.0\n"
     "           ^"},
    {"stored = grad ^ 2",
     "line 1, column 15: ^ takes single values, and this is one for each element; write x*x, sqrt(x) or exp(y*log(x))\n"
     "  stored = grad ^ 2\n"
     "                ^"},
    {"stored = 2 ^ grad",
     "line 1, column 12: ^ takes single values, and this is one for each element; write x*x, sqrt(x) or exp(y*log(x))\n"
     "  stored = 2 ^ grad\n"
     "             ^"},
    {"x = grad; stored = x ^ 0.5",
     "line 1, column 22: ^ takes single values, and this is one for each element; write x*x, sqrt(x) or exp(y*log(x))\n"
     "  x = grad; stored = x ^ 0.5\n"
     "                       ^"},
    {"stored = (1 < grad) ^ 2",
     "line 1, column 21: ^ takes single values, and this is one for each element; write x*x, sqrt(x) or exp(y*log(x))\n"
     "  stored = (1 < grad) ^ 2\n"
     "                      ^"},
    {"a23456789012345678901234567890123 = 1",
     "line 1, column 1: a name of 33 characters; at most 32\n"
     "  a23456789012345678901234567890123 = 1\n"
     "  ^"},
    {"stored = grad \xc3\x97 2",
     "line 1, column 15: letters beyond ASCII may stand in comments only\n"
     "  stored = grad \xc3\x97 2\n"
     "                ^"},
    {"stored = grad\x07", "line 1, column 14: a control character (number 7)\n  stored = grad?\n               ^"},
    {"stored = \xff",
     "line 1, column 10: letters beyond ASCII may stand in comments only\n"
     "  stored = ?\n"
     "           ^"},
    {"# \xff\nstored = \xfe",
     "line 2, column 10: letters beyond ASCII may stand in comments only\n"
     "  stored = ?\n"
     "           ^"},
    {"stored = grad; ; stored == 1",
     "line 1, column 25: '==' compares; to assign, write '='\n"
     "  stored = grad; ; stored == 1\n"
     "                          ^"},
    {"stored = ------------------------------------------------------------grad",
     "line 1, column 58: nested too deep: at most 48 signs, powers, calls and parentheses within one another\n"
     "  ...--------------------------------------------------------grad\n"
     "                                                 ^"},
    {"stored = ((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((grad))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))",
     "line 1, column 58: nested too deep: at most 48 signs, powers, calls and parentheses within one another\n"
     "  ...((((((((((((((((((((((((((((((((((((((((((((((((((((((((grad))))\n"
     "                                                 ^"},
    {"\t\tstored = gard * 2",
     "line 1, column 12: there is no name 'gard' here; did you mean 'grad'?\n"
     "    stored = gard * 2\n"
     "             ^"},
    {"param a = 1\n\n# comment\n   stored = grad * a + bb",
     "line 4, column 24: there is no name 'bb' here; a value is given before it is used\n"
     "     stored = grad * a + bb\n"
     "                         ^"},
    {"stored = grad + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10 + 11 + 12 + 13 + 14 + gard + 15 + 16 + 17 + 18 + 19 + 20 + 21 + 22",
     "line 1, column 78: there is no name 'gard' here; did you mean 'grad'?\n"
     "  ... + 6 + 7 + 8 + 9 + 10 + 11 + 12 + 13 + 14 + gard + 15 + 16 + 17 \n"
     "                                                 ^"},
    {"# \xc3\xa4\xc3\xb6\xc3\xbc\xc3\x9f\nstored = grad # \xc3\xa4\n+ 1",
     "line 3, column 1: expected a statement, such as 'stored -= 0.1 * grad', found '+'\n"
     "  + 1\n"
     "  ^"},
    {"stored = grad #\xc3\xa4\xc3\xa4 @\n@", "line 2, column 1: '@' is no sign of the language\n  @\n  ^"},
    {"slot s0 = 0\nslot s1 = 0\nslot s2 = 0\nslot s3 = 0\nslot s4 = 0\nslot s5 = 0\nslot s6 = 0\nslot s7 = 0\nslot s8 = 0\n",
     "line 9, column 6: too many slots; at most 8\n"
     "  slot s8 = 0\n"
     "       ^"},
    {"stored = stored\nslot a = 0\na = grad + sqrt(a) + sqrt(a) + sqrt(a)\nstored = b",
     "line 4, column 10: there is no name 'b' here; a value is given before it is used\n"
     "  stored = b\n"
     "           ^"},
};

static void refused(struct bytes text, const char *says)
{
    struct program *p = NULL;
    int64_t before = mem_live();

    if (program_new(text, &p, &error) == STATUS_OK)
        test_fail(__FILE__, __LINE__, "accepted: %.*s", (int)text.size, (const char *)text.at);
    CHECK_EQ(error.status, STATUS_INVALID_ARGUMENT);
    CHECK_EQ(error.reason, REASON_UPDATER_INVALID);
    CHECK(bytes_is_utf8(bytes_text(error.text)));
    CHECK_TEXT(error.text, says);
    CHECK(p == NULL);
    CHECK_EQ(mem_live(), before);
}

TEST(every_mistake_is_told_with_its_place)
{
    CHECK(sizeof mistakes / sizeof mistakes[0] >= 40);
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        size_t size = strlen(mistakes[i].text);
        char *exact = guard_new(size);
        memcpy(exact, mistakes[i].text, size);
        refused(bytes_of(exact, size), mistakes[i].says);
        guard_free(exact, size);
    }
}

TEST(a_zero_byte_is_told)
{
    refused(bytes_of("stored = grad\0", 14),
            "line 1, column 14: a zero byte; a program is text\n  stored = grad?\n               ^");
}

/* ---- bounds: the last that fits is taken, the first that does not is told ------------------------------------------ */

static struct buf text;

static struct bytes text_of(const char *begin, const char *each, unsigned count, const char *end)
{
    buf_clear(&text);
    buf_text(&text, begin);
    for (unsigned i = 0; i < count; i++)
        for (const char *c = each; *c != '\0'; c++) {
            if (*c == '@') buf_format(&text, "%u", i);
            else buf_add(&text, c, 1);
        }
    buf_text(&text, end);
    CHECK(!text.failed);
    return bytes_of(text.at, text.size);
}

static const struct {
    const char *begin, *each, *end;
    unsigned most;
    const char *says;
} bounds[] = {
    {"", "param p@ = 1\n", "stored = grad*p0*p1*p2*p3*p4*p5*p6*p7*p8*p9*p10*p11*p12*p13*p14*p15\n", PROGRAM_PARAMS_MAX,
     "line 17, column 7: too many params; at most 16\n  param p16 = 1\n        ^"},
    {"", "slot s@ = 0; s@ = grad\n", "stored = grad\n", PROGRAM_SLOTS_MAX,
     "line 9, column 6: too many slots; at most 8\n  slot s8 = 0; s8 = grad\n       ^"},
    {"stored = grad\n", "x@ = grad; stored += x@\n", "", PROGRAM_LOCALS_MAX,
     "line 66, column 1: too many names; at most 64 of the program's own\n  x64 = grad; stored += x64\n  ^"},
    {"", "x = 1\n", "stored = x", PROGRAM_NODES_MAX - 1,
     "line 1025, column 10: the program is too long: more than 1024 numbers, names and operations\n"
     "  stored = x\n"
     "           ^"},
    {"", "stored = stored / grad\n", "", PROGRAM_INSTRUCTIONS_MAX,
     "line 257, column 17: too many instructions for each element; at most 256\n"
     "  stored = stored / grad\n"
     "                  ^"},
    {"stored = grad", " + @.5", "", PROGRAM_SCALARS_MAX,
     "line 1, column 341: too many different scalars that elements read; at most 48\n"
     "  ...5 + 42.5 + 43.5 + 44.5 + 45.5 + 46.5 + 47.5 + 48.5\n"
     "                                                 ^"},
    {"x = step", " + @", "\nstored = grad * x", (PROGRAM_HOST_MAX - 1) / 2,
     "line 1, column 475: too many numbers, names and operations in the part that runs once a step; at most 192\n"
     "  ... 86 + 87 + 88 + 89 + 90 + 91 + 92 + 93 + 94 + 95\n"
     "                                                 ^"},
};

TEST(bounds_are_met_and_told)
{
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        struct program *p = NULL;
        CHECK_OK(program_new(text_of(bounds[i].begin, bounds[i].each, bounds[i].most, bounds[i].end), &p, &error), &error);
        program_free(p);
        refused(text_of(bounds[i].begin, bounds[i].each, bounds[i].most + 1, bounds[i].end), bounds[i].says);
    }
    buf_fini(&text);
}

/* n values, all of them wanted until the end; each but the first has its own register while `stored` holds one. */
static struct bytes wide(unsigned n)
{
    text_of("", "x@ = sqrt(grad * 1@)\n", n, "stored = x0");
    for (unsigned i = 1; i < n; i++) buf_format(&text, " - x%u", i);
    CHECK(!text.failed);
    return bytes_of(text.at, text.size);
}

TEST(registers_are_bounded)
{
    struct program *p = NULL;

    CHECK_OK(program_new(wide(PROGRAM_REGISTERS_MAX), &p, &error), &error);
    CHECK_EQ(p->register_count, PROGRAM_REGISTERS_MAX);
    program_free(p);
    refused(wide(PROGRAM_REGISTERS_MAX + 1),
            "line 25, column 17: too many values of each element that are wanted at once; at most 24\n"
            "  x24 = sqrt(grad * 124)\n"
            "                  ^");
    buf_fini(&text);
}

TEST(a_text_of_the_longest_size_is_taken)
{
    struct program *p = NULL;
    struct bytes t = text_of("stored = grad #", "x", PROGRAM_TEXT_SIZE_MAX - 15, "");

    CHECK_OK(program_new(t, &p, &error), &error);
    program_free(p);
    t = text_of("stored = grad #", "x", PROGRAM_TEXT_SIZE_MAX - 14, "");
    CHECK_EQ(program_new(t, &p, &error), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(error.text, "line 1, column 8193: the text is too long: 8193 bytes, at most 8192\n");
    buf_fini(&text);
}

TEST(depth_is_bounded_in_every_way_to_nest)
{
    static const char *const ways[][2] = {{"(", ")"}, {"-", ""}, {"sqrt(", ")"}, {"2 ^ ", ""}, {"min(1, ", ")"}};

    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        for (unsigned n = PROGRAM_DEPTH_MAX - 1; n <= PROGRAM_DEPTH_MAX; n++) {
            struct program *p = NULL;
            buf_clear(&text);
            buf_text(&text, "stored = grad * (0 * ");       /* the outer parenthesis is one level */
            for (unsigned k = 0; k + 1 < n; k++) buf_text(&text, ways[i][0]);
            buf_text(&text, "1");
            for (unsigned k = 0; k + 1 < n; k++) buf_text(&text, ways[i][1]);
            buf_text(&text, ")");
            enum status s = program_new(bytes_of(text.at, text.size), &p, &error);
            CHECK_EQ(s, n < PROGRAM_DEPTH_MAX ? STATUS_OK : STATUS_INVALID_ARGUMENT);
            if (s != STATUS_OK) CHECK_SAYS(error.text, "nested too deep: at most 48");
            program_free(p);
        }
    buf_fini(&text);
}

/* ---- meaning ------------------------------------------------------------------------------------------------------ */

/* `stored` after one step from stored 3, grad 2, with step 4, contributors 5, num_workers 6, staleness 7. */
static double meaning(const char *program_text)
{
    const double moments[EXPR_MOMENT_COUNT] = {4, 5, 6, 7};
    double params[PROGRAM_PARAMS_MAX], scalars[PROGRAM_SCALARS_MAX], room[PROGRAM_SCRATCH0] = {3, 2};
    double *arrays[PROGRAM_SCRATCH0];
    struct program *p = NULL;

    CHECK_OK(program_new(bytes_text(program_text), &p, &error), &error);
    for (unsigned i = 0; i < PROGRAM_SCRATCH0; i++) arrays[i] = &room[i];
    for (unsigned i = 0; i < p->param_count; i++) params[i] = p->params[i].standard;
    for (unsigned i = 0; i < p->slot_count; i++)
        if (p->slots[i].starts_as_stored) room[PROGRAM_SLOT0 + i] = room[PROGRAM_STORED];
    program_scalars(p, params, moments, scalars);
    program_run_f64(p, scalars, arrays, 1);
    program_free(p);
    return room[PROGRAM_STORED];
}

static const struct {
    const char *text;
    double stored;
} meanings[] = {
    {"stored = grad", 2},
    {"stored += grad * 2", 7},
    {"stored -= grad", 1},
    {"stored *= grad + 1", 9},
    {"stored /= grad + 1", 1},
    {"stored = 7", 7},
    {"stored = 1 + 2 * 3", 7},
    {"stored = (1 + 2) * 3", 9},
    {"stored = 10 - 4 - 3", 3},
    {"stored = 24 / 4 / 3", 2},
    {"stored = grad - stored - grad", -3},
    {"stored = 8 / grad / grad", 2},
    {"stored = 2 ^ 3 ^ 2", 512},
    {"stored = -2 ^ 2", -4},
    {"stored = (-2) ^ 2", 4},
    {"stored = 2 ^ -1", 0.5},
    {"stored = 2 * 3 ^ 2", 18},
    {"stored = 9 ^ 0.5", 3},
    {"stored = --grad", 2},
    {"stored = grad - -grad", 4},
    {"stored = - grad * 3", -6},
    {"stored = 1 < 2", 1},
    {"stored = 2 < 1", 0},
    {"stored = grad < stored", 1},
    {"stored = grad > stored", 0},
    {"stored = grad <= 2", 1},
    {"stored = grad >= 3", 0},
    {"stored = grad == 2", 1},
    {"stored = grad != 2", 0},
    {"stored = 1 + 1 < 3", 1},
    {"stored = (grad < 3) * 5 + (grad > 3) * 7", 5},
    {"stored = min(grad, stored)", 2},
    {"stored = max(grad, stored)", 3},
    {"stored = min(5, 4)", 4},
    {"stored = abs(-grad)", 2},
    {"stored = abs(-3)", 3},
    {"stored = sqrt(grad * 8)", 4},
    {"stored = sqrt(16)", 4},
    {"stored = exp(grad - 2)", 1},
    {"stored = log(grad - 1)", 0},
    {"stored = tanh(grad - 2)", 0},
    {"stored = exp(0) + log(1) + tanh(0)", 1},
    {"stored = sign(-grad)", -1},
    {"stored = sign(0 * grad)", 0},
    {"stored = sign(4)", 1},
    {"stored = clamp(grad, -1, 1)", 1},
    {"stored = clamp(-grad, -1, 1)", -1},
    {"stored = clamp(grad, -5, 5)", 2},
    {"stored = clamp(9, 1, grad)", 2},
    {"stored = where(grad > 1, 10, 20)", 10},
    {"stored = where(grad < 1, stored, grad)", 2},
    {"stored = where(0, grad, 20)", 20},
    {"stored = step", 4},
    {"stored = contributors", 5},
    {"stored = num_workers", 6},
    {"stored = staleness", 7},
    {"stored = grad * 2 ^ step", 32},
    {"stored = pi", 3.14159265358979323846},
    {"stored = e", 2.71828182845904523536},
    {"stored = 1e1", 10},
    {"stored = 1.5e+1 + .5 + 2.", 17.5},
    {"stored = 5E-1", 0.5},
    {"param a = 4; stored = a", 4},
    {"param a = -4, b = 3\nstored = a * b", -12},
    {"param a = 4,\n  b = 3\nstored = a * b", 12},
    {"stored = grad; param a = 2; stored *= a", 4},
    {"slot m = 0; m = m + grad; stored -= m", 1},
    {"slot m = stored; m += grad; stored = m", 5},
    {"slot m =\n stored, n = 0\nn = grad; m = n; stored = m + n", 4},
    {"g = grad; g = g * g; stored = g", 4},
    {"x = 1; x += step; x *= 2; stored = x * grad", 20},
    {"x = 1; x = grad; y = x; x = 5; stored = x + y", 7},
    {"x = grad; stored = x; x = 1", 2},
    {"stored = stored", 3},
    {"slot a = 0, b = stored; t = a; a = b; b = t; stored = a - b", 3},
    {"  stored = (grad +\n\n 1) # and so on\n;;;\n# end", 3},
    {"stored = grad\r\n# a line that ends as others end it\r\nstored += 1\r\n", 3},
    {"stored = grad *\n  2 -\n  1", 3},
    {"stored =\n  grad", 2},
    {"stored = grad # \xc3\xa4\xe2\x82\xac", 2},
    {"Stored = grad; stored = Stored", 2},
    {"_a1 = grad; stored = _a1", 2},
    {"stored = 2;", 2},
};

TEST(texts_mean_what_the_page_says)
{
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++) {
        double got = meaning(meanings[i].text);
        if (got != meanings[i].stored)
            test_fail(__FILE__, __LINE__, "%s gives %.17g, not %.17g", meanings[i].text, got, meanings[i].stored);
    }
}

/* A number, in the text and as a param, is read as C reads it. */
TEST(numbers_are_read_to_the_last_bit)
{
    static const double numbers[] = {0.1, 1e-8, 0.999, 0.30000000000000004, 1.7976931348623157e308, 5e-324, 
                                     2.2250738585072014e-308, 123456789012345680.0, 9007199254740993.0, 0.0};

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        char one[100];
        snprintf(one, sizeof one, "stored = %.17g", numbers[i]);
        CHECK(meaning(one) == numbers[i]);
        snprintf(one, sizeof one, "param a = -%.17g\nstored = a", numbers[i]);
        CHECK(meaning(one) == -numbers[i]);
    }
}

TEST(numbers_do_not_follow_the_locale)
{
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL) test_skip("it needs a German locale: package locales-all");
    double got = meaning("stored = 1.5");
    setlocale(LC_NUMERIC, "C");
    CHECK(got == 1.5);
}

/* ---- any text ----------------------------------------------------------------------------------------------------- */

static const char adam[] =
    "param lr = 0.001, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8\n"
    "slot mean = 0, var = 0 # both\n"
    "mean = beta1 * mean + (1 - beta1) * grad\n"
    "var = beta2 * var + (1 - beta2) * (grad * grad)\n"
    "stored -= lr * sqrt(1 - beta2^step) / (1 - beta1^step) * (mean / (sqrt(var) + epsilon))\n"
    "stored = where(abs(stored) >= 1e-30, stored, 0)\n";

TEST(a_text_cut_anywhere_ends_where_it_is_cut)
{
    for (size_t size = 0; size < sizeof adam; size++) {
        struct program *p = NULL;
        char *exact = guard_new(size);
        int64_t before = mem_live();
        memcpy(exact, adam, size);
        enum status s = program_new(bytes_of(exact, size), &p, &error);
        CHECK(s == STATUS_OK || error.reason == REASON_UPDATER_INVALID);
        program_free(p);
        CHECK_EQ(mem_live(), before);
        guard_free(exact, size);
    }
}

TEST(a_byte_changed_anywhere_is_read_or_told)
{
    char *exact = guard_new(sizeof adam - 1);

    memcpy(exact, adam, sizeof adam - 1);
    for (size_t i = 0; i < sizeof adam - 1; i++)
        for (unsigned c = 0; c < 256; c++) {
            struct program *p = NULL;
            exact[i] = (char)c;
            if (program_new(bytes_of(exact, sizeof adam - 1), &p, &error) != STATUS_OK) {
                CHECK_EQ(error.reason, REASON_UPDATER_INVALID);
                CHECK(bytes_is_utf8(bytes_text(error.text)));
            }
            program_free(p);
            exact[i] = adam[i];
        }
    guard_free(exact, sizeof adam - 1);
}

static void sweep(const char *program_text, enum status wanted)
{
    for (uint64_t n = 1;; n++) {
        struct program *p = NULL;
        int64_t before = mem_live();
        mem_fault_at(n);
        enum status s = program_new(bytes_text(program_text), &p, &error);
        bool hit = mem_fault_hit();
        mem_fault_at(0);
        program_free(p);
        CHECK_EQ(mem_live(), before);
        CHECK_EQ(s, hit ? STATUS_RESOURCE_EXHAUSTED : wanted);
        if (hit) CHECK_EQ(error.reason, REASON_NO_MEMORY);
        else break;
    }
}

TEST(every_failing_allocation_is_told)
{
    sweep(adam, STATUS_OK);
    sweep("stored = gard", STATUS_INVALID_ARGUMENT);
    sweep("stored = 1 +\n 2 + )", STATUS_INVALID_ARGUMENT);
}
